#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/parameterlist.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torchdion/routing.h>

#include "optim/model.h"
#include "optim/options_of.h"
#include "optim/warnings.h"

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

TEST(ParamGroups, GiveEachKindItsRule) {
  const Network model;
  const auto groups = param_groups(*model, DionOptions(0.5).weight_decay(0.25).scalar_algorithm("adamw"));
  for (const at::Tensor& vector : {model->hidden->bias, model->convolution->bias, model->scale}) {
    EXPECT_EQ(options_of(groups, vector).algorithm(), "adamw");
    EXPECT_EQ(options_of(groups, vector).lr_multiplier(), 1);
    EXPECT_EQ(options_of(groups, vector).weight_decay(), 0);
  }
  EXPECT_EQ(options_of(groups, model->embedding->weight).algorithm(), "adamw");
  EXPECT_EQ(options_of(groups, model->embedding->weight).weight_decay(), 0);
  EXPECT_EQ(options_of(groups, model->output->weight).algorithm(), "adamw");
  EXPECT_EQ(options_of(groups, model->output->weight).lr_multiplier(), 0.25);
  EXPECT_EQ(options_of(groups, model->hidden->weight).algorithm(), kOfTheOptimizer);
  EXPECT_EQ(options_of(groups, model->hidden->weight).weight_decay(), 0.25);
  EXPECT_EQ(options_of(groups, model->convolution->weight).batch_dims(), 0);
  EXPECT_FALSE(options_of(groups, model->convolution->weight).fan_in_first());
  EXPECT_TRUE(options_of(groups, model->transposed->weight).fan_in_first());
  for (const OptimizerParamGroup& group : groups) EXPECT_EQ(group.options().get_lr(), 0.5);
}

TEST(ParamGroups, HoldEveryTrainableParameterOnceAndTrain) {
  Network model;
  model->hidden->weight.set_requires_grad(false);
  const auto groups = param_groups(*model, {});
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
  EXPECT_EQ(options_of(groups, model->output->weight).algorithm(), kOfTheOptimizer);
  EXPECT_EQ(message_of([&] { param_groups(*model, {}, {"nothing"}); }),
            "torchdion::param_groups: heads must name a module with a weight of two or more dimensions, got nothing");
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
  const auto groups = param_groups(model, {});
  for (const at::Tensor& vector : {model.pos_embed, model.A_log, model.gamma}) {
    EXPECT_EQ(options_of(groups, vector).algorithm(), "lion");
  }
  EXPECT_EQ(options_of(groups, model.projection).algorithm(), kOfTheOptimizer);
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
    const auto groups = param_groups(model, {});
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
  at::Tensor gain = register_parameter("weight_g", at::ones({9, 4}));
};

TEST(ParamGroups, KnowEmbeddingsOfOtherTypesAndGainsByTheirNames) {
  const PatchEmbeddingImpl model;
  const auto groups = param_groups(model, DionOptions().weight_decay_tensor(at::ones({})));
  for (const at::Tensor& param : {model.weight, model.gain}) {
    EXPECT_EQ(options_of(groups, param).algorithm(), "lion");
    EXPECT_EQ(options_of(groups, param).weight_decay(), 0);
    EXPECT_FALSE(options_of(groups, param).weight_decay_tensor().defined());
  }
  EXPECT_EQ(groups.size(), 2u);
}

std::string algorithm_of(const std::string& key, at::IntArrayRef sizes) {
  torch::nn::Module model;
  const at::Tensor param = model.register_parameter(key, at::ones(sizes));
  return options_of(param_groups(model, {}), param).algorithm();
}

TEST(ParamGroups, KnowRawParametersByTheirNames) {
  for (const char* key : {"emb_rel_k", "rpb", "pos_embed_window", "mask_emb", "visual_prompt", "dt_proj_bias",
                          "dt_bias", "layer_scale_1", "weight_g", "time_decay"}) {
    EXPECT_EQ(algorithm_of(key, {4, 6, 5}), "lion") << key;
  }
  for (const char* key : {"prompts_visual_projection", "embed_proj", "dt_proj_weight", "token_proj", "W_g", "w_beta",
                          "fc1_weight", "wq", "time_decay_w1"}) {
    EXPECT_EQ(algorithm_of(key, {6, 4}), kOfTheOptimizer) << key;
  }
}

TEST(ParamGroups, KnowTheParametersOfAListByItsName) {
  torch::nn::Module model;
  const auto list = model.register_module("prompts", torch::nn::ParameterList());
  list->append(at::ones({4, 8}).requires_grad_());
  EXPECT_EQ(options_of(param_groups(model, {}), (*list)[0]).algorithm(), "lion");
}

namespace position::norm::expert {

struct EmbeddingsImpl : torch::nn::Module {
  at::Tensor weight = register_parameter("weight", at::ones({9, 4}));
};

struct MixerImpl : torch::nn::Module {
  at::Tensor weight = register_parameter("weight", at::ones({3, 6, 4}));
};

}  // namespace position::norm::expert

TEST(ParamGroups, TakeNoNamespaceForAClass) {
  const position::norm::expert::MixerImpl mixer;
  EXPECT_EQ(options_of(param_groups(mixer, {}), mixer.weight).algorithm(), kOfTheOptimizer);
  EXPECT_FALSE(options_of(param_groups(mixer, {}), mixer.weight).skip_zero_gradients());
  const position::norm::expert::EmbeddingsImpl embeddings;
  EXPECT_EQ(param_groups(embeddings, {}).size(), 1u);
}

struct GuessedImpl : torch::nn::Module {
  at::Tensor kernel = register_parameter("kernel", at::ones({7, 5, 6}));
  at::Tensor stack = register_parameter("stack", at::ones({4, 5, 6}));
};

TEST(ParamGroups, GuessTheFormOfThreeDimensionsAndSaySoOnce) {
  torch::nn::Module model;
  for (const char* layer : {"0", "1"}) model.register_module(layer, std::make_shared<GuessedImpl>());
  Warnings warnings;
  const auto groups = param_groups(model, {});
  const Dion optimizer(groups);
  for (const char* layer : {"0", "1"}) {
    const auto known = model.named_parameters();
    EXPECT_EQ(options_of(groups, known[std::string(layer) + ".kernel"]).batch_dims(), 0);
    EXPECT_EQ(options_of(groups, known[std::string(layer) + ".stack"]).batch_dims(), 1);
  }
  EXPECT_EQ(
      warnings.messages,
      std::vector<std::string>{
          "torchdion::param_groups: no layer and no name says what these parameters are: *.kernel, taken by shape "
          "for one matrix each (batch_dims(0)); *.stack, taken by shape for stacks of matrices (batch_dims(1)); "
          "where this is wrong, set batch_dims in the group"});
}

TEST(ParamGroups, GuessNoFormThatTheOptionsSay) {
  GuessedImpl model;
  Warnings warnings;
  const auto groups = param_groups(model, DionOptions(0.02).batch_dims(1).fan_in_first(true));
  for (const at::Tensor& param : {model.kernel, model.stack}) {
    EXPECT_EQ(options_of(groups, param).batch_dims(), 1);
    EXPECT_TRUE(options_of(groups, param).fan_in_first());
  }
  EXPECT_TRUE(warnings.messages.empty());
}

}  // namespace

}  // namespace torchdion
