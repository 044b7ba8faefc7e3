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
                g.dion[1].Q[0] = at::zeros({3, 9, 2}, at::kDouble);
              }},
        Spoil{"MatrixGradient",
              [](Groups& g) {
                g.dion[1].G[0] = at::zeros({3, 8, 11}, at::kDouble);
              }},
        Spoil{"BlocksThatDoNotDivideTheRows", [](Groups& g) { g.dion[0].form.blocks = 7; }},
        Spoil{"StepOfLion", [](Groups& g) { g.lion[0].steps[2] = at::zeros({}, at::kHalf); }},
        Spoil{"ParameterWhoseRowsAreOne",
              [](Groups& g) { g.adamw[0].X[1] = at::zeros({1}, at::kDouble).expand({2000}); }},
        Spoil{"LionMomentum", [](Groups& g) { g.lion[0].M[2] = at::zeros({1}, at::kDouble); }},
        Spoil{"LionMomentumWithGaps",
              [](Groups& g) {
                g.lion[0].M[1] = at::zeros({}, at::kDouble).expand({3, 4});
              }},
        Spoil{"AdamWGradient", [](Groups& g) { g.adamw[0].G[1] = at::zeros({1999}, at::kDouble); }},
        Spoil{"AdamWVariance", [](Groups& g) { g.adamw[0].V[1] = at::zeros({1999}, at::kDouble); }},
        Spoil{"AdamWVarianceWithGaps", [](Groups& g) { g.adamw[0].V[1] = at::zeros({}, at::kDouble).expand({2000}); }},
        Spoil{"AdamWVarianceOfIntegers", [](Groups& g) { g.adamw[0].V[1] = at::zeros({2000}, at::kLong); }}),
    [](const auto& info) { return info.param.name; });

}  // namespace

}  // namespace torchdion::engine
