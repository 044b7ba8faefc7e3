#include <gtest/gtest.h>
#include <torch/nn/modules/container/parameterdict.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torchdion/routing.h>

#include "optim/model.h"
#include "optim/options_of.h"
#include "optim/warnings.h"

namespace torchdion {

namespace {

struct ColumnParallelLinearImpl : torch::nn::Module {
  ColumnParallelLinearImpl(int64_t in, int64_t out) : weight(register_parameter("weight", at::ones({out, in}))) {}
  at::Tensor weight;
};
TORCH_MODULE(ColumnParallelLinear);

struct TokenTableImpl : torch::nn::Module {
  TokenTableImpl(int64_t tokens, int64_t width) : weight(register_parameter("weight", at::ones({tokens, width}))) {}
  at::Tensor weight;
};
TORCH_MODULE(TokenTable);

TEST(ParamGroups, KnowLayersOfOtherLibrariesByTheirClasses) {
  torch::nn::Module model;
  const TokenTable tokens(32, 8);
  const ColumnParallelLinear body(8, 8), head(8, 32);
  model.register_module("0", tokens.ptr());
  model.register_module("1", body.ptr());
  model.register_module("lm_head", head.ptr());
  Warnings warnings;
  const auto groups = param_groups(model, {}, {}, /*strict=*/true);
  EXPECT_EQ(options_of(groups, tokens->weight).algorithm(), "lion");
  EXPECT_EQ(options_of(groups, tokens->weight).lr_multiplier(), 1);
  EXPECT_EQ(options_of(groups, body->weight).algorithm(), kOfTheOptimizer);
  EXPECT_EQ(options_of(groups, head->weight).lr_multiplier(), 1 / std::sqrt(8.0));
  EXPECT_TRUE(warnings.messages.empty());
}

TEST(ParamGroups, KnowThePartsOfAdaptersByTheirNames) {
  torch::nn::Module model;
  const auto add = [&](const char* name, at::IntArrayRef sizes) {
    const auto dict = model.register_module(name, torch::nn::ParameterDict());
    return dict->insert("default", at::ones(sizes).requires_grad_());
  };
  const at::Tensor rows = add("trainable_tokens_delta", {3, 8}), packed = add("oft_R", {4, 28});
  const at::Tensor factor = add("lora_A", {4, 8}), blocks = add("boft_R", {2, 8, 4, 4});
  const auto groups = param_groups(model, DionOptions().weight_decay(0.25), {}, /*strict=*/true);
  for (const at::Tensor& param : {rows, packed}) {
    EXPECT_EQ(options_of(groups, param).algorithm(), "lion");
    EXPECT_EQ(options_of(groups, param).weight_decay(), 0);
  }
  EXPECT_EQ(options_of(groups, factor).algorithm(), kOfTheOptimizer);
  EXPECT_EQ(options_of(groups, blocks).batch_dims(), 2);
}

struct UnsureImpl : torch::nn::Module {
  at::Tensor field = register_parameter("field", at::ones({1, 8, 16, 16}));
  at::Tensor composition = register_parameter("composition", at::ones({6, 4}));
  at::Tensor heads = register_parameter("heads", at::ones({2, 3, 8, 6}));
  at::Tensor modulated = register_parameter("modulated", at::ones({1, 16, 12, 3, 3}));
};

TEST(ParamGroups, UpdateTheUnknownAsVectorsAndSaySoOnce) {
  const UnsureImpl model;
  Warnings warnings;
  const auto groups = param_groups(model, DionOptions().weight_decay(0.25));
  for (const at::Tensor& param : {model.field, model.composition}) {
    EXPECT_EQ(options_of(groups, param).algorithm(), "lion");
    EXPECT_EQ(options_of(groups, param).weight_decay(), 0);
  }
  EXPECT_EQ(options_of(groups, model.heads).batch_dims(), 2);
  EXPECT_EQ(options_of(groups, model.modulated).batch_dims(), 1);
  EXPECT_EQ(warnings.messages,
            std::vector<std::string>{
                "torchdion::param_groups: no layer and no name says what these parameters are: modulated, taken by "
                "shape for stacks of matrices (batch_dims(1)); heads, taken by shape for stacks of matrices "
                "(batch_dims(2)); field, composition, updated as vectors; where this is wrong, set batch_dims in the "
                "group, and leave algorithm out of that of a matrix"});
}

TEST(ParamGroups, RefuseTheUnknownWhereTheyAreStrict) {
  const UnsureImpl model;
  EXPECT_EQ(
      message_of([&] { param_groups(model, {}, {}, /*strict=*/true); }),
      "torchdion::param_groups: strict must be false where no layer and no name says what a parameter is, got true "
      "with field, composition, heads, modulated; freeze them for this call and give them a group of their own, "
      "with batch_dims for a stack");
}

TEST(ParamGroups, TakeTheBatchDimsOfTheOptionsForTheUnknownOfThreeOrMoreDimensions) {
  const UnsureImpl model;
  const auto groups = param_groups(model, DionOptions().batch_dims(2));
  for (const at::Tensor& param : {model.field, model.heads, model.modulated}) {
    EXPECT_EQ(options_of(groups, param).algorithm(), kOfTheOptimizer);
    EXPECT_EQ(options_of(groups, param).batch_dims(), 2);
  }
  EXPECT_EQ(options_of(groups, model.composition).algorithm(), "lion");
}

TEST(ParamGroups, GiveTheBatchDimsOfTheOptionsToNoLayer) {
  torch::nn::Module model;
  const torch::nn::Linear linear(8, 6);
  model.register_module("linear", linear.ptr());
  const at::Tensor stack = model.register_parameter("stack", at::ones({4, 8, 6}));
  const auto groups = param_groups(model, DionOptions().batch_dims(1), {}, /*strict=*/true);
  EXPECT_EQ(options_of(groups, stack).batch_dims(), 1);
  EXPECT_EQ(options_of(groups, linear->weight).batch_dims(), std::nullopt);
  Dion optimizer(groups);
  linear->weight.mutable_grad() = at::ones({6, 8});
  optimizer.step();
  EXPECT_TRUE(optimizer.state_of(linear->weight).tensor("Q").defined());
}

TEST(ParamGroups, KeepCopiesOnTwoStagesEqualWhereBothAreNamedAsHeads) {
  torch::nn::Embedding embedding(32, 8);
  torch::nn::Linear head(torch::nn::LinearOptions(8, 32).bias(false));
  torch::nn::Module first, last;
  first.register_module("tokens", embedding.ptr());
  last.register_module("lm_head", head.ptr());
  head->weight.data().copy_(embedding->weight.data());
  Dion optimizers[] = {Dion(param_groups(first, {}, {"tokens"})), Dion(param_groups(last, {}, {"lm_head"}))};
  const at::Tensor before = head->weight.detach().clone();
  for (int step = 0; step < 3; ++step) {
    embedding->weight.mutable_grad() = at::randn({32, 8});
    head->weight.mutable_grad() = embedding->weight.grad().clone();
    for (Dion& optimizer : optimizers) optimizer.step();
  }
  EXPECT_TRUE(bitwise_equal(embedding->weight.detach(), head->weight.detach()));
  EXPECT_FALSE(bitwise_equal(head->weight.detach(), before));
}

TEST(ParamGroups, SpeakOfAHeadAloneUntilItIsNamed) {
  torch::nn::Module model;
  model.register_module("lm_head", torch::nn::Linear(torch::nn::LinearOptions(8, 32).bias(false)).ptr());
  Warnings warnings;
  param_groups(model, {}, {"lm_head"});
  EXPECT_TRUE(warnings.messages.empty());
  param_groups(model, {});
  EXPECT_EQ(warnings.messages,
            std::vector<std::string>{
                "torchdion::param_groups: lm_head is an output layer in a model without an embedding, as on the last "
                "stage of a pipeline; heads must name it here and, if the two are tied, the embedding on its stage, so "
                "that their copies stay equal"});
}

TEST(AnOptimizer, SpeaksOfFeaturePlanesAndStacksButOfNoKernels) {
  const auto said_of = [](at::IntArrayRef sizes) {
    Warnings warnings;
    const Dion optimizer(std::vector<at::Tensor>{at::ones(sizes).requires_grad_()});
    return warnings.messages;
  };
  EXPECT_EQ(said_of({1, 4, 6, 9}),
            std::vector<std::string>{
                "torchdion::Dion: parameter 0 (parameter group 0) has shape [1, 4, 6, 9] and is taken for a "
                "convolution, one matrix of 1×216; set batch_dims(2) in its group if it is a "
                "stack of matrices, batch_dims(0) if not"});
  for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{1, 16, 12, 3, 3}, {2, 3, 8, 6}}) {
    EXPECT_EQ(said_of(sizes).size(), 1u);
  }
  for (const std::vector<int64_t>& sizes :
       {std::vector<int64_t>{8, 4, 3, 3}, {64, 3, 16, 16}, {1, 4, 3, 3}, {8, 4, 3, 3, 3}}) {
    EXPECT_TRUE(said_of(sizes).empty());
  }
}

}  // namespace

}  // namespace torchdion
