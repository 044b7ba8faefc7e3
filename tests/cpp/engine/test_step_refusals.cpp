#include "engine/step.h"

#include <gtest/gtest.h>

#include "engine/step_groups.h"

namespace torchdion::engine {

namespace {

struct Spoil {
  const char* name;
  void (*apply)(Groups&);
};

class StepRefuses : public testing::TestWithParam<Spoil> {};

TEST_P(StepRefuses, AtItsConstructionBeforeAnythingIsWritten) {
  Groups groups = all_groups();
  GetParam().apply(groups);
  const std::vector<at::Tensor> before = snapshot(groups);
  EXPECT_THROW(Step(groups, Nonfinite::propagate), c10::ValueError);
  expect_unchanged(groups, before);
}

// Each in the last parameter of its kind, after everything else has been found good.
INSTANTIATE_TEST_SUITE_P(
    WhatDoesNotFit, StepRefuses,
    testing::Values(
        Spoil{"FactorOfAnotherShape",
              [](Groups& g) {
                g.all[kExperts].states[kQ][0] = at::zeros({3, 9, 2}, at::kDouble);
              }},
        Spoil{"MatrixGradient",
              [](Groups& g) {
                g.all[kExperts].G[0] = at::zeros({3, 8, 11}, at::kDouble);
              }},
        Spoil{"BlocksThatDoNotDivideTheRows", [](Groups& g) { g.all[kMatrices].options.set("blocks", int64_t{7}); }},
        Spoil{"StepOfLion", [](Groups& g) { g.all[kUnderLion].steps[2] = at::zeros({}, at::kHalf); }},
        Spoil{"ParameterWhoseRowsAreOne",
              [](Groups& g) { g.all[kUnderAdamW].X[1] = at::zeros({1}, at::kDouble).expand({2000}); }},
        Spoil{"LionMomentum", [](Groups& g) { g.all[kUnderLion].states[kMomentum][2] = at::zeros({1}, at::kDouble); }},
        Spoil{"LionMomentumWithGaps",
              [](Groups& g) {
                g.all[kUnderLion].states[kMomentum][1] = at::zeros({}, at::kDouble).expand({3, 4});
              }},
        Spoil{"AdamWGradient", [](Groups& g) { g.all[kUnderAdamW].G[1] = at::zeros({1999}, at::kDouble); }},
        Spoil{"AdamWVariance",
              [](Groups& g) { g.all[kUnderAdamW].states[kVariance][1] = at::zeros({1999}, at::kDouble); }},
        Spoil{"AdamWVarianceWithGaps",
              [](Groups& g) { g.all[kUnderAdamW].states[kVariance][1] = at::zeros({}, at::kDouble).expand({2000}); }},
        Spoil{"AdamWVarianceOfIntegers",
              [](Groups& g) { g.all[kUnderAdamW].states[kVariance][1] = at::zeros({2000}, at::kLong); }}),
    [](const auto& info) { return info.param.name; });

struct Refusal {
  const char* name;
  void (*spoil)(Group&);
  const char* words;
};

class StepRefusesTensors : public testing::TestWithParam<Refusal> {};

TEST_P(StepRefusesTensors, WithOneSentenceThatSaysWhatIsWrong) {
  Groups groups;
  groups.all.push_back(dion_group({{{12, 20}, {12, 4}}, {{12, 20}, {12, 4}}}));
  GetParam().spoil(groups.all[0]);
  try {
    Step(groups, Nonfinite::propagate);
    FAIL() << "accepted";
  } catch (const c10::ValueError& error) {
    EXPECT_NE(std::string(error.what_without_backtrace()).find(GetParam().words), std::string::npos) << error.what();
  }
}

INSTANTIATE_TEST_SUITE_P(
    WhatDoesNotFit, StepRefusesTensors,
    testing::Values(
        Refusal{"Gradient",
                [](Group& g) {
                  g.G[1] = at::zeros({20, 12});
                },
                "the gradient of a parameter of shape [12, 20] must have that shape, got [20, 12]"},
        Refusal{"Momentum",
                [](Group& g) {
                  g.states[kMomentum][1] = at::zeros({12, 21});
                },
                "must have that shape, got [12, 21]"},
        Refusal{"MomentumByColumns", [](Group& g) { g.states[kMomentum][1] = column_major(g.states[kMomentum][1]); },
                "must be contiguous"},
        Refusal{"QByColumns", [](Group& g) { g.states[kQ][1] = column_major(g.states[kQ][1]); },
                "the state Q of a parameter of shape [12, 20] must be contiguous"},
        Refusal{"NegativeMomentum", [](Group& g) { g.states[kMomentum][1] = at::_neg_view(g.states[kMomentum][1]); },
                "the state momentum of a parameter of shape [12, 20] must not be a negative view"},
        Refusal{"NegativeQ", [](Group& g) { g.states[kQ][1] = at::_neg_view(g.states[kQ][1]); },
                "must not be a negative view"},
        Refusal{"QOfOtherRows",
                [](Group& g) {
                  g.states[kQ][1] = at::zeros({13, 4});
                },
                "must have the shape [12, r] or [20, r]"},
        Refusal{"QTooWide",
                [](Group& g) {
                  g.states[kQ][1] = at::zeros({20, 13});
                },
                "1 ≤ r ≤ 12, got [20, 13]"},
        Refusal{"QWithoutColumns",
                [](Group& g) {
                  g.states[kQ][1] = at::zeros({12, 0});
                },
                "1 ≤ r ≤ 12, got [12, 0]"},
        Refusal{"QOfAStack",
                [](Group& g) {
                  g.states[kQ][1] = at::zeros({2, 12, 4});
                },
                "must have the shape [12, r] or [20, r] with 1 ≤ r ≤ 12, got [2, 12, 4]"},
        Refusal{"Integers", [](Group& g) { g.G[1] = g.G[1].to(at::kInt); }, "dense floating-point tensor on cpu"},
        Refusal{"Sparse", [](Group& g) { g.G[1] = g.G[1].to_sparse(); }, "dense floating-point tensor on cpu"}),
    [](const auto& info) { return info.param.name; });

}  // namespace

}  // namespace torchdion::engine
