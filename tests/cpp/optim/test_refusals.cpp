#include <gtest/gtest.h>
#include <torch/optim/adamw.h>

#include <limits>

#include "optim/model.h"
#include "optim/warnings.h"

namespace torchdion {

namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN(), kInfinity = std::numeric_limits<double>::infinity();

struct OptionCase {
  DionOptions options;
  std::string sentence;
};

class RefusedOption : public testing::TestWithParam<OptionCase> {};

TEST_P(RefusedOption, IsNamedWithItsValueAndWhatIsAllowedAtEveryDoor) {
  const auto& [options, sentence] = GetParam();
  const Model model;
  EXPECT_EQ(message_of([&] { Dion(std::vector<at::Tensor>{model.weight}, options); }), "torchdion::Dion: " + sentence);

  Dion optimizer(std::vector<at::Tensor>{model.weight});
  EXPECT_EQ(message_of([&] {
              optimizer.add_param_group(OptimizerParamGroup({model.square}, std::make_unique<DionOptions>(options)));
            }),
            "torchdion::Dion: " + sentence + " (parameter group 1)");
  EXPECT_EQ(optimizer.param_groups().size(), 1u);

  static_cast<DionOptions&>(optimizer.param_groups()[0].options()) = options;
  model.give_gradients(1);
  const at::Tensor before = model.weight.detach().clone();
  EXPECT_EQ(message_of([&] { optimizer.step(); }), "torchdion::Dion: " + sentence + " (parameter group 0)");
  EXPECT_TRUE(bitwise_equal(model.weight.detach(), before));
  EXPECT_TRUE(optimizer.state().empty());
}

const DionOptions kDefaults;

INSTANTIATE_TEST_SUITE_P(
    Range, RefusedOption,
    testing::Values(
        OptionCase{DionOptions(-1), "lr must be a finite number ≥ 0, got -1"},
        OptionCase{DionOptions(kNaN), "lr must be a finite number ≥ 0, got nan"},
        OptionCase{DionOptions(kInfinity), "lr must be a finite number ≥ 0, got inf"},
        OptionCase{DionOptions().lr_multiplier(-0.5), "lr_multiplier must be a finite number ≥ 0, got -0.5"},
        OptionCase{DionOptions().mu(1), "mu must be in [0, 1), got 1"},
        OptionCase{DionOptions().mu(kNaN), "mu must be in [0, 1), got nan"},
        OptionCase{DionOptions().betas(DionOptions::Betas{0.9, 1}),
                   "betas must be none or two numbers in [0, 1), got {0.9, 1}"},
        OptionCase{DionOptions().weight_decay(-1), "weight_decay must be a finite number ≥ 0, got -1"},
        OptionCase{DionOptions().epsilon(kNaN), "epsilon must be a finite number ≥ 0, got nan"},
        OptionCase{DionOptions().rank_fraction(0), "rank_fraction must be in (0, 1], got 0"},
        OptionCase{DionOptions().rank_fraction(1.5), "rank_fraction must be in (0, 1], got 1.5"},
        OptionCase{DionOptions().rank_multiple_of(0), "rank_multiple_of must be an integer ≥ 1, got 0"},
        OptionCase{DionOptions().rcqr_oversample(0.5), "rcqr_oversample must be a finite number ≥ 1, got 0.5"},
        OptionCase{DionOptions().scalar_algorithm("dion"),
                   "scalar_algorithm must be one of \"lion\", \"adamw\", got \"dion\""},
        OptionCase{DionOptions().orientation(static_cast<Orientation>(7)),
                   "orientation must be one of Orientation::right, Orientation::left, Orientation::short_side, got 7"},
        OptionCase{DionOptions().orthonormalize(static_cast<Orthonormalize>(9)),
                   "orthonormalize must be one of Orthonormalize::automatic, Orthonormalize::rcqr, "
                   "Orthonormalize::cholesky_qr, Orthonormalize::qr, got 9"},
        OptionCase{DionOptions().nonfinite(static_cast<Nonfinite>(-1)),
                   "nonfinite must be one of Nonfinite::propagate, Nonfinite::zero, Nonfinite::skip_step, "
                   "Nonfinite::raise, got -1"},
        OptionCase{DionOptions().precision(static_cast<Precision>(4)),
                   "precision must be none or one of Precision::highest, Precision::high, Precision::medium, got 4"},
        OptionCase{DionOptions().algorithm("sgd"),
                   "algorithm must be one of \"dion\", \"muon\", \"normuon\", \"dion2\", \"dion3\", \"double_dion\", "
                   "\"demo\", \"lion\", "
                   "\"adamw\", got \"sgd\""},
        OptionCase{DionOptions().Q_dtype(at::kFloat8_e4m3fn),
                   "Q_dtype must be none or a floating-point dtype, got Float8_e4m3fn"},
        OptionCase{DionOptions().batch_dims(-1), "batch_dims must be none or an integer ≥ 0, got -1"},
        OptionCase{DionOptions().blocks(0), "blocks must be an integer ≥ 1, got 0"},
        OptionCase{DionOptions().blocks(2).fan_in_first(true), "blocks cannot be combined with fan_in_first"},
        OptionCase{DionOptions().momentum_dtype(at::kInt),
                   "momentum_dtype must be none or a floating-point dtype, got Int"}));

at::Tensor with_gradient(at::Tensor param) {
  param.mutable_grad() = param.clone();
  return param;
}

struct ParameterCase {
  std::string name;
  at::Tensor param;
  std::string sentence;
};

class RefusedParameter : public testing::TestWithParam<ParameterCase> {};

TEST_P(RefusedParameter, IsNamedByItsPlace) {
  const Model model;
  const auto make = [&] { Dion(std::vector<at::Tensor>{model.weight, GetParam().param}); };
  EXPECT_EQ(message_of(make), "torchdion::Dion: parameter 1 (parameter group 0) " + GetParam().sentence);
}

INSTANTIATE_TEST_SUITE_P(
    Kind, RefusedParameter,
    testing::Values(ParameterCase{"Undefined", at::Tensor(), "must be a tensor, got an undefined one"},
                    ParameterCase{"Integer", with_gradient(at::ones({3, 4}, at::kLong)),
                                  "must be real floating-point, got Long"},
                    ParameterCase{"Complex", at::ones({3, 4}, at::kComplexFloat).requires_grad_(),
                                  "must be real floating-point, got ComplexFloat"},
                    ParameterCase{"Sparse", at::eye(3).to_sparse().requires_grad_(), "must be dense, got Sparse"},
                    ParameterCase{"Meta", at::empty({3, 4}, at::kMeta).requires_grad_(),
                                  "is on meta, which this build has no kernels for"},
                    ParameterCase{"NoLeaf", Model::leaf({3, 4}, 1) * 2, "must be a leaf of the graph"}),
    [](const auto& info) { return info.param.name; });

TEST(DionRefuses, AParameterOfTwoGroups) {
  const Model model;
  Dion optimizer(model.groups());
  EXPECT_EQ(message_of([&] { optimizer.add_param_group(OptimizerParamGroup({model.bias})); }),
            "torchdion::Dion: parameter 0 (parameter group 3) is given twice");
}

TEST(DionRefuses, NoParameters) {
  EXPECT_EQ(message_of([] { Dion(std::vector<at::Tensor>{}); }), "torchdion::Dion: params must not be empty");
  EXPECT_EQ(message_of([] { Dion(std::vector<OptimizerParamGroup>{}); }),
            "torchdion::Dion: param_groups must not be empty");
}

TEST(DionRefuses, BlocksThatDoNotDivideTheRows) {
  const Model model;
  EXPECT_EQ(message_of([&] { Dion(std::vector<at::Tensor>{model.weight}, DionOptions().blocks(5)); }),
            "torchdion::Dion: blocks must divide the 12 rows of parameter 0 (parameter group 0), got 5");
}

TEST(DionRefuses, ParametersOfADtypeThatNothingComputesWith) {
  for (const at::ScalarType dtype : {at::kFloat8_e4m3fn, at::kComplexFloat, at::kLong}) {
    EXPECT_EQ(message_of([&] {
                Dion(std::vector<at::Tensor>{with_gradient(at::zeros({4, 3}, at::kFloat).to(dtype))});
              }),
              c10::str("torchdion::Dion: parameter 0 (parameter group 0) must be real floating-point, got ", dtype));
  }
}

struct GradientCase {
  std::string name;
  at::Tensor gradient;
  std::string sentence;
};

class RefusedGradient : public testing::TestWithParam<GradientCase> {};

TEST_P(RefusedGradient, OfTheLastParameterLeavesEverythingAsItWas) {
  const Model model;
  Dion optimizer(model.groups());
  take_steps(optimizer, model, 0, 2);
  std::vector<at::Tensor> all = model.params();
  for (const at::Tensor& param : model.params()) all.push_back(optimizer.state_of(param).momentum());
  const std::vector<at::Tensor> before = Model::snapshot(all);
  model.give_gradients(3);
  at::Tensor vector = model.vector;
  vector.mutable_grad() = GetParam().gradient;
  EXPECT_NE(message_of([&] { optimizer.step(); }).find(GetParam().sentence), std::string::npos)
      << message_of([&] { optimizer.step(); });
  expect_bitwise_equal(all, before);
  model.give_gradients(3);
  optimizer.step();  // and the optimizer goes on
  EXPECT_EQ(optimizer.state_of(model.vector).step().item<double>(), 3);
}

INSTANTIATE_TEST_SUITE_P(
    Kind, RefusedGradient,
    testing::Values(
        GradientCase{"Shape", at::ones({6}, at::kDouble),
                     "the gradient of parameter 0 (parameter group 2) of shape [5] must have that shape, got [6]"},
        GradientCase{"Integer", at::ones({5}, at::kLong), "must be a dense floating-point tensor on cpu"},
        GradientCase{"Sparse", at::ones({5}, at::kDouble).to_sparse(), "must be a dense"}),
    [](const auto& info) { return info.param.name; });

TEST(DionRefuses, WhatAnotherOptimizerHasPutIntoItsGroupsAndStates) {
  const Model model;
  Dion optimizer(std::vector<at::Tensor>{model.weight});
  const c10::IValue saved = optimizer.state_dict();
  model.give_gradients(1);
  optimizer.state()[model.weight.unsafeGetTensorImpl()] = std::make_unique<torch::optim::AdamWParamState>();
  const std::string states = "torchdion::Dion: the state of a parameter must be a torchdion::ParamState";
  EXPECT_EQ(message_of([&] { optimizer.step(); }), states);
  EXPECT_EQ(message_of([&] { optimizer.state_dict(); }), states);
  optimizer.param_groups()[0].set_options(std::make_unique<torch::optim::AdamWOptions>());
  const std::string options = "torchdion::Dion: the options of a group must be torchdion::Options (parameter group 0)";
  EXPECT_EQ(message_of([&] { optimizer.load_state_dict(saved); }), options);
  EXPECT_EQ(message_of([&] { optimizer.step(); }), options);
}

struct StateCase {
  std::string name;
  void (*spoil)(const Model& model, Dion& optimizer);
  std::string sentence;
};

class RefusedTensor : public testing::TestWithParam<StateCase> {};

TEST_P(RefusedTensor, OfAStepIsNamedByItsParameter) {
  const Model model;
  Dion optimizer(model.groups());
  take_steps(optimizer, model, 0, 1);
  GetParam().spoil(model, optimizer);
  EXPECT_EQ(message_of([&] { optimizer.step(); }), "torchdion::Dion: " + GetParam().sentence);
}

ParamState& state_of(Dion& optimizer, const at::Tensor& param) {
  return static_cast<ParamState&>(*optimizer.state().at(param.unsafeGetTensorImpl()));
}

INSTANTIATE_TEST_SUITE_P(
    Kind, RefusedTensor,
    testing::Values(
        StateCase{"SharedMemory",
                  [](const Model& model, Dion&) {
                    model.square.set_data(at::zeros({9}, at::kDouble).expand({9, 9}));
                  },
                  "the elements of parameter 1 (parameter group 0) of shape [9, 9] must not share memory, got strides "
                  "[0, 1]"},
        StateCase{"FreedGradient",
                  [](const Model& model, Dion&) { model.bias.grad().storage().unsafeGetStorageImpl()->set_nbytes(8); },
                  "the storage of the gradient of parameter 2 (parameter group 0) of shape [7] must hold its 56 bytes, "
                  "got 8"},
        StateCase{"Step",
                  [](const Model& model, Dion& optimizer) {
                    state_of(optimizer, model.vector).tensor("step", at::zeros({2}));
                  },
                  "the state step of parameter 0 (parameter group 2) of shape [5] must be one integer, FP32 or FP64 "
                  "number on the CPU, got CPUFloatType of shape [2]"}),
    [](const auto& info) { return info.param.name; });

TEST(Dion, WarnsOfAParameterThatAGroupHoldsTwiceAndUpdatesItOnce) {
  const Model model, other = model.clone();
  Warnings warnings;
  Dion optimizer(std::vector<at::Tensor>{model.weight, model.bias, model.weight}),
      reference({other.weight, other.bias});
  optimizer.add_param_group(OptimizerParamGroup({model.square, model.square}));
  reference.add_param_group(OptimizerParamGroup({other.square}));
  take_steps(optimizer, model, 0, 2);
  take_steps(reference, other, 0, 2);
  expect_bitwise_equal(model.params(), other.params());
  const std::string sentence =
      "torchdion::Dion: the optimizer contains a parameter group with duplicate parameters: parameter ";
  EXPECT_EQ(warnings.messages,
            (std::vector<std::string>{sentence + "2 (parameter group 0) is given twice and updated once",
                                      sentence + "1 (parameter group 1) is given twice and updated once"}));
}

TEST(Dion, WarnsOnceOfALikelyStackOfMatrices) {
  Warnings warnings;
  const Model model;
  Dion optimizer(std::vector<at::Tensor>{model.weight, model.experts});
  take_steps(optimizer, model, 0, 3);
  ASSERT_EQ(warnings.messages.size(), 1u);
  EXPECT_EQ(warnings.messages[0].find("torchdion::Dion: parameter 1 (parameter group 0) has shape [3, 8, 10] and is"),
            0u);
}

TEST(DionNonfinite, RaiseNamesTheCountAndWritesNothingNotEvenState) {
  const Model model;
  Dion optimizer(model.groups(DionOptions(0.1).nonfinite(Nonfinite::raise)), DionOptions().nonfinite(Nonfinite::raise));
  model.give_gradients(1);
  model.bias.grad()[2] = kNaN;
  model.weight.grad()[0][3] = -kInfinity;
  const std::vector<at::Tensor> before = Model::snapshot(model.params());
  EXPECT_EQ(message_of([&] { optimizer.step(); }),
            "torchdion::Dion: 2 gradient entries are NaN or infinite (nonfinite(Nonfinite::raise))");
  expect_bitwise_equal(model.params(), before);
  EXPECT_TRUE(optimizer.state().empty());
}

TEST(DionNonfinite, SkipStepLeavesTheWholeStepOutAndCountsIt) {
  const Model model;
  const DionOptions options = DionOptions(0.1).nonfinite(Nonfinite::skip_step);
  Dion optimizer(model.groups(options), options);
  model.give_gradients(1);
  model.bias.grad()[2] = kNaN;
  const std::vector<at::Tensor> before = Model::snapshot(model.params());
  optimizer.step();
  expect_bitwise_equal(model.params(), before);
  EXPECT_EQ(optimizer.stats().skipped_steps, 1);
  EXPECT_EQ(optimizer.stats().nonfinite_entries, 1);
}

TEST(DionNonfinite, APolicyThatIsLoadedHoldsAndSoDoesItForGroupsThatAreAddedLater) {
  const Model model, other = model.clone();
  const DionOptions options = DionOptions(0.1).nonfinite(Nonfinite::skip_step);
  Dion saved(other.groups(options), options), optimizer(model.groups());
  take_steps(saved, other, 0, 1);
  optimizer.load_state_dict(saved.state_dict());
  model.give_gradients(1);
  model.bias.grad()[2] = kNaN;
  optimizer.step();
  EXPECT_EQ(optimizer.stats().skipped_steps, 1);
  optimizer.add_param_group(OptimizerParamGroup({at::zeros({3, 2})}));
  EXPECT_EQ(static_cast<const DionOptions&>(optimizer.param_groups().back().options()).nonfinite(),
            Nonfinite::skip_step);
}

}  // namespace

}  // namespace torchdion
