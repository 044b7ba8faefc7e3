#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torchdion/routing.h>

#include "optim/model.h"

namespace torchdion {

namespace {

struct NetworkImpl : torch::nn::Module {
  torch::nn::Embedding embedding{register_module("embedding", torch::nn::Embedding(50, 16))};
  torch::nn::Linear hidden{register_module("hidden", torch::nn::Linear(16, 12))};
  torch::nn::Conv1d convolution{register_module("convolution", torch::nn::Conv1d(4, 6, 3))};
  torch::nn::ConvTranspose1d transposed{register_module("transposed", torch::nn::ConvTranspose1d(4, 6, 3))};
  torch::nn::Linear output{register_module("output", torch::nn::Linear(torch::nn::LinearOptions(16, 50).bias(false)))};
  at::Tensor scale = register_parameter("scale", at::ones({3}));
};
TORCH_MODULE(Network);

const DionOptions& options_of(const OptimizerParamGroup& group) {
  return static_cast<const DionOptions&>(group.options());
}

const DionOptions& options_of(const std::vector<OptimizerParamGroup>& groups, const at::Tensor& param) {
  for (const OptimizerParamGroup& group : groups) {
    for (const at::Tensor& other : group.params()) {
      if (other.is_same(param)) return options_of(group);
    }
  }
  throw std::out_of_range("no group holds the parameter");
}

TEST(ParamGroups, GiveEachKindItsRule) {
  const Network model;
  const auto groups = param_groups(*model, DionOptions(0.5).weight_decay(0.25).scalar_algorithm(Algorithm::adamw));
  for (const at::Tensor& vector : {model->hidden->bias, model->convolution->bias, model->scale}) {
    EXPECT_EQ(options_of(groups, vector).algorithm(), Algorithm::adamw);
    EXPECT_EQ(options_of(groups, vector).lr_multiplier(), 1);
    EXPECT_EQ(options_of(groups, vector).weight_decay(), 0);
  }
  EXPECT_EQ(options_of(groups, model->embedding->weight).algorithm(), Algorithm::adamw);
  EXPECT_EQ(options_of(groups, model->embedding->weight).weight_decay(), 0);
  EXPECT_EQ(options_of(groups, model->output->weight).algorithm(), Algorithm::adamw);
  EXPECT_EQ(options_of(groups, model->output->weight).lr_multiplier(), 0.25);
  EXPECT_EQ(options_of(groups, model->hidden->weight).algorithm(), Algorithm::dion);
  EXPECT_EQ(options_of(groups, model->hidden->weight).weight_decay(), 0.25);
  EXPECT_EQ(options_of(groups, model->convolution->weight).batch_dims(), 0);
  EXPECT_FALSE(options_of(groups, model->convolution->weight).fan_in_first());
  EXPECT_TRUE(options_of(groups, model->transposed->weight).fan_in_first());
  for (const OptimizerParamGroup& group : groups) EXPECT_EQ(group.options().get_lr(), 0.5);
}

TEST(ParamGroups, HoldEveryTrainableParameterOnceAndTrain) {
  Network model;
  model->hidden->weight.set_requires_grad(false);
  const auto groups = param_groups(*model);
  std::size_t count = 0;
  for (const OptimizerParamGroup& group : groups) count += group.params().size();
  EXPECT_EQ(count, model->parameters().size() - 1);
  EXPECT_THROW(options_of(groups, model->hidden->weight), std::out_of_range);

  Dion optimizer(groups);
  const at::Tensor before = model->transposed->weight.detach().clone();
  for (at::Tensor& param : model->parameters()) param.mutable_grad() = at::ones_like(param);
  optimizer.step();
  EXPECT_FALSE(bitwise_equal(model->transposed->weight.detach(), before));
  EXPECT_EQ(optimizer.state_of(model->transposed->weight).Q().sizes(), (std::vector<int64_t>{18, 4}));
}

TEST(ParamGroups, TakeTheHeadsThatAreNamed) {
  const Network model;
  const auto groups = param_groups(*model, {}, {"embedding"});  // an embedding that is the head too
  EXPECT_EQ(options_of(groups, model->embedding->weight).lr_multiplier(), 0.25);
  EXPECT_EQ(options_of(groups, model->output->weight).algorithm(), Algorithm::dion);
  EXPECT_EQ(message_of([&] { param_groups(*model, {}, {"nothing"}); }),
            "torchdion::param_groups: heads must name modules with a weight, got nothing");
}

struct WideImpl : torch::nn::Module {  // an MLP as wide as the vocabulary of bytes, registered up before down
  torch::nn::Embedding embedding{register_module("embedding", torch::nn::Embedding(256, 64))};
  torch::nn::Linear up{register_module("up", torch::nn::Linear(64, 256))};
  torch::nn::Linear down{register_module("down", torch::nn::Linear(256, 64))};
};

TEST(ParamGroups, KeepTheOrderOfRegistration) {
  const WideImpl model;
  const auto groups = param_groups(model, {}, {"embedding"});
  ASSERT_EQ(groups.front().params().size(), 2);
  EXPECT_TRUE(groups.front().params()[0].is_same(model.up->weight));
  EXPECT_TRUE(groups.front().params()[1].is_same(model.down->weight));
}

TEST(ParamGroups, GiveANameMoreWeightThanAWidth) {
  const WideImpl unnamed;
  EXPECT_EQ(options_of(param_groups(unnamed), unnamed.up->weight).algorithm(), Algorithm::lion);

  WideImpl model;
  const torch::nn::Linear head = model.register_module("head", torch::nn::Linear(64, 100));
  const auto groups = param_groups(model);
  EXPECT_EQ(options_of(groups, model.up->weight).algorithm(), Algorithm::dion);
  EXPECT_EQ(options_of(groups, head->weight).algorithm(), Algorithm::lion);
}

TEST(ParamGroups, KnowAHeadByItsName) {
  torch::nn::Sequential model;
  model->push_back("body", torch::nn::Linear(16, 9));
  model->push_back("lm_head", torch::nn::Linear(9, 7));
  const auto groups = param_groups(*model);
  EXPECT_EQ(options_of(groups, model->named_parameters()["lm_head.weight"]).algorithm(), Algorithm::lion);
  EXPECT_EQ(options_of(groups, model->named_parameters()["body.weight"]).algorithm(), Algorithm::dion);
}

struct RawImpl : torch::nn::Module {
  at::Tensor pos_embed = register_parameter("pos_embed", at::ones({1, 7, 8}));
  at::Tensor A_log = register_parameter("A_log", at::ones({8, 4}));
  at::Tensor gamma = register_parameter("gamma", at::ones({8, 1, 1}));
  at::Tensor projection = register_parameter("projection", at::ones({8, 4}));
  at::Tensor experts = register_parameter("experts", at::ones({3, 8, 4}));
  torch::nn::MultiheadAttention attention{register_module("attention", torch::nn::MultiheadAttention(8, 2))};
};

TEST(ParamGroups, TakeMatricesInTheirFormAndNothingThatOnlyLooksLikeOne) {
  const RawImpl model;
  const auto groups = param_groups(model);
  for (const at::Tensor& vector : {model.pos_embed, model.A_log, model.gamma}) {
    EXPECT_EQ(options_of(groups, vector).algorithm(), Algorithm::lion);
  }
  EXPECT_EQ(options_of(groups, model.projection).algorithm(), Algorithm::dion);
  EXPECT_EQ(options_of(groups, model.attention->in_proj_weight).blocks(), 3);
  EXPECT_EQ(options_of(groups, model.experts).batch_dims(), 1);
  EXPECT_TRUE(options_of(groups, model.experts).skip_zero_gradients());
  EXPECT_FALSE(options_of(groups, model.projection).skip_zero_gradients());
}

struct ExpertsImpl : torch::nn::Module {  // 3 of them, from 8 to 6 and back
  explicit ExpertsImpl(bool fan_in_first)
      : gate_up(register_parameter("gate_up_proj", fan_in_first ? at::ones({3, 8, 12}) : at::ones({3, 12, 8}))),
        down(register_parameter("down_proj", fan_in_first ? at::ones({3, 6, 8}) : at::ones({3, 8, 6}))) {}
  at::Tensor gate_up, down;
};

TEST(ParamGroups, GiveStacksOfExpertsTheirFormByTheirSizes) {
  for (const bool fan_in_first : {false, true}) {
    const ExpertsImpl model(fan_in_first);
    const auto groups = param_groups(model);
    for (const at::Tensor& stack : {model.gate_up, model.down}) {
      EXPECT_EQ(options_of(groups, stack).batch_dims(), 1);
      EXPECT_EQ(options_of(groups, stack).fan_in_first(), fan_in_first);
      EXPECT_TRUE(options_of(groups, stack).skip_zero_gradients());
    }
    EXPECT_EQ(options_of(groups, model.gate_up).blocks(), fan_in_first ? 1 : 2);
    EXPECT_EQ(options_of(groups, model.down).blocks(), 1);
    EXPECT_EQ(groups.size(), fan_in_first ? 1u : 2u);
  }
}

struct PatchEmbeddingImpl : torch::nn::Module {
  at::Tensor weight = register_parameter("weight", at::ones({9, 4}));
  at::Tensor projection_g = register_parameter("projection_g", at::ones({9, 4}));
};

TEST(ParamGroups, KnowEmbeddingsOfOtherTypesAndGainsByTheirNames) {
  const PatchEmbeddingImpl model;
  const auto groups = param_groups(model, DionOptions().weight_decay_tensor(at::ones({})));
  for (const at::Tensor& param : {model.weight, model.projection_g}) {
    EXPECT_EQ(options_of(groups, param).algorithm(), Algorithm::lion);
    EXPECT_EQ(options_of(groups, param).weight_decay(), 0);
    EXPECT_FALSE(options_of(groups, param).weight_decay_tensor().defined());
  }
  EXPECT_EQ(groups.size(), 2u);
}

torch::nn::Sequential layers(const std::vector<std::pair<std::string, torch::nn::AnyModule>>& named) {
  torch::nn::Sequential model;
  for (const auto& [name, module] : named) model->push_back(name, module);
  return model;
}

std::vector<std::string> heads_of(const torch::nn::Module& model) {
  std::vector<std::string> heads;
  const auto groups = param_groups(model);
  for (const auto& item : model.named_parameters()) {
    if (options_of(groups, item.value()).lr_multiplier() != 1) heads.push_back(item.key());
  }
  return heads;
}

torch::nn::AnyModule linear(int64_t in, int64_t out) { return torch::nn::AnyModule(torch::nn::Linear(in, out)); }
torch::nn::AnyModule embedding(int64_t size) { return torch::nn::AnyModule(torch::nn::Embedding(size, 64)); }

TEST(ParamGroups, TakeNoOtherEmbeddingThanThatOfTokensForTheVocabulary) {
  auto body = layers({{"wte", embedding(30)},
                      {"wpe", embedding(64)},
                      {"types", embedding(2)},
                      {"fc", linear(64, 64)},
                      {"pair", linear(64, 2)}});
  EXPECT_EQ(heads_of(*body), std::vector<std::string>{});
  body->push_back("out", torch::nn::Linear(64, 30));
  EXPECT_EQ(heads_of(*body), std::vector<std::string>{"out.weight"});
  body->push_back("again", torch::nn::Linear(64, 30));
  EXPECT_EQ(heads_of(*body), std::vector<std::string>{"again.weight"});  // and a warning
}

TEST(ParamGroups, KnowTheOutputOfAModelAndItsClassifier) {
  EXPECT_EQ(heads_of(*layers({{"output", linear(64, 30)}, {"after", linear(64, 64)}})),
            std::vector<std::string>{"output.weight"});
  EXPECT_EQ(heads_of(*layers({{"body", linear(64, 64)}, {"classifier", linear(64, 3)}})),
            std::vector<std::string>{"classifier.weight"});
  EXPECT_EQ(heads_of(*layers({{"classifier", linear(64, 3)}, {"body", linear(64, 64)}})), std::vector<std::string>{});
}

}  // namespace

}  // namespace torchdion
