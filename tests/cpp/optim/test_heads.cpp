#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torchdion/routing.h>

#include "optim/model.h"
#include "optim/options_of.h"

namespace torchdion {

namespace {

torch::nn::Sequential layers(const std::vector<std::pair<std::string, torch::nn::AnyModule>>& named) {
  torch::nn::Sequential model;
  for (const auto& [name, module] : named) model->push_back(name, module);
  return model;
}

std::vector<std::string> heads_of(const torch::nn::Module& model) {
  std::vector<std::string> heads;
  const auto groups = param_groups(model, {});
  for (const auto& item : model.named_parameters()) {
    if (options_of(groups, item.value()).lr_multiplier() != 1) heads.push_back(item.key());
  }
  return heads;
}

torch::nn::AnyModule linear(int64_t in, int64_t out) { return torch::nn::AnyModule(torch::nn::Linear(in, out)); }
torch::nn::AnyModule embedding(int64_t size) { return torch::nn::AnyModule(torch::nn::Embedding(size, 64)); }

TEST(ParamGroups, RefuseAHeadWhoseWeightIsAVector) {
  torch::nn::Sequential model(torch::nn::Linear(4, 4), torch::nn::LayerNorm(torch::nn::LayerNormOptions({4})));
  EXPECT_EQ(message_of([&] { param_groups(*model, {}, {"1"}); }),
            "torchdion::param_groups: heads must name a module with a weight of two or more dimensions, got 1");
}

TEST(ParamGroups, GiveAHeadTheFactorOfItsInputsWhereverTheyStand) {
  torch::nn::Sequential model(torch::nn::ConvTranspose1d(16, 7, 1), torch::nn::Conv2d(4, 7, 2),
                              torch::nn::Linear(16, 7));
  const auto groups = param_groups(*model, {}, {"0", "1", "2"});
  for (const char* name : {"0.weight", "1.weight", "2.weight"}) {
    EXPECT_EQ(options_of(groups, model->named_parameters()[name]).lr_multiplier(), 0.25) << name;
  }
}

TEST(ParamGroups, GiveANameMoreWeightThanAWidth) {
  auto model = layers({{"embedding", embedding(256)}, {"up", linear(64, 256)}, {"down", linear(256, 64)}});
  EXPECT_EQ(heads_of(*model), std::vector<std::string>{"up.weight"});
  model->push_back("head", torch::nn::Linear(64, 100));
  EXPECT_EQ(heads_of(*model), std::vector<std::string>{"head.weight"});
}

TEST(ParamGroups, KnowAHeadByItsName) {
  torch::nn::Sequential model;
  model->push_back("body", torch::nn::Linear(16, 9));
  model->push_back("lm_head", torch::nn::Linear(9, 7));
  const auto groups = param_groups(*model, {});
  EXPECT_EQ(options_of(groups, model->named_parameters()["lm_head.weight"]).algorithm(), "lion");
  EXPECT_EQ(options_of(groups, model->named_parameters()["body.weight"]).algorithm(), kOfTheOptimizer);
}

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

class PositionTableImpl : public torch::nn::EmbeddingImpl {
 public:
  PositionTableImpl() : EmbeddingImpl(60, 64) {}
};
TORCH_MODULE(PositionTable);

TEST(ParamGroups, TakeWholeWordsForNamesOfEmbeddingsOfSomethingElse) {
  for (const char* name : {"encoder_embedding", "embedding_layer", "input_embeds_layer", "language_embedding"}) {
    EXPECT_EQ(heads_of(*layers({{name, embedding(60)}, {"out", linear(64, 60)}})),
              std::vector<std::string>{"out.weight"})
        << name;
  }
  for (const char* name : {"absPosEmbed", "rel_2", "lang_embeddings", "Type", "timestep1"}) {
    EXPECT_EQ(heads_of(*layers({{name, embedding(60)}, {"out", linear(64, 60)}})), std::vector<std::string>{}) << name;
  }
  const torch::nn::AnyModule places{PositionTable()};
  EXPECT_EQ(heads_of(*layers({{"places", places}, {"out", linear(64, 60)}})), std::vector<std::string>{});
}

TEST(ParamGroups, KnowSeveralClassifiersAndWhatWrappersInsert) {
  EXPECT_EQ(
      heads_of(*layers(
          {{"body", linear(64, 64)}, {"cls_classifier", linear(64, 3)}, {"distillation_classifier", linear(64, 3)}})),
      (std::vector<std::string>{"cls_classifier.weight", "distillation_classifier.weight"}));
  EXPECT_EQ(heads_of(*layers({{"body", linear(64, 64)}, {"head", linear(64, 3)}, {"head_dist", linear(64, 3)}})),
            (std::vector<std::string>{"head.weight", "head_dist.weight"}));
  EXPECT_EQ(heads_of(*layers({{"module", linear(64, 64)}})), std::vector<std::string>{});
}

TEST(ParamGroups, KnowTheOutputOfAModelAndItsClassifier) {
  EXPECT_EQ(heads_of(*layers({{"output", linear(64, 30)}, {"after", linear(64, 64)}})),
            std::vector<std::string>{"output.weight"});
  EXPECT_EQ(heads_of(*layers({{"body", linear(64, 64)}, {"classifier", linear(64, 3)}})),
            std::vector<std::string>{"classifier.weight"});
  EXPECT_EQ(heads_of(*layers({{"classifier", linear(64, 3)}, {"body", linear(64, 64)}})),
            std::vector<std::string>{"classifier.weight"});
  EXPECT_EQ(heads_of(*layers({{"body", linear(64, 64)}, {"score", linear(64, 3)}})),
            std::vector<std::string>{"score.weight"});
  EXPECT_EQ(heads_of(*layers({{"score", linear(64, 3)}, {"body", linear(64, 64)}})), std::vector<std::string>{});
}

}  // namespace

}  // namespace torchdion