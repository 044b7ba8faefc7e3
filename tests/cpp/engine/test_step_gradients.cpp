#include "engine/step.h"

#include <gtest/gtest.h>

#include <limits>

#include "engine/step_groups.h"

namespace torchdion::engine {

namespace {

TEST(StepNonfinite, RaiseThrowsAndSkipStepSkipsAndNeitherWrites) {
  for (Nonfinite policy : {Nonfinite::raise, Nonfinite::skip_step}) {
    Groups groups = all_groups();
    put_two_nonfinite(groups);
    const std::vector<at::Tensor> before = snapshot(groups);
    Step step(groups, policy);
    if (policy == Nonfinite::raise) {
      EXPECT_THROW(step.run(), c10::ValueError);
    } else {
      const Report report = step.run();
      EXPECT_TRUE(report.skipped);
      EXPECT_EQ(report.nonfinite.total(), 2);
    }
    EXPECT_FALSE(step.wrote());
    expect_unchanged(groups, before);
  }
}

TEST(StepNonfinite, PoliciesDoNothingToFiniteGradients) {
  Groups reference = all_groups();
  Step(reference, Nonfinite::propagate).run();
  const std::vector<at::Tensor> expected = snapshot(reference);
  for (Nonfinite policy : {Nonfinite::zero, Nonfinite::raise, Nonfinite::skip_step}) {
    Groups groups = all_groups();
    const Report report = Step(groups, policy).run();
    EXPECT_FALSE(report.skipped);
    EXPECT_EQ(report.nonfinite.total(), 0);
    expect_unchanged(groups, expected);
  }
}

TEST(StepNonfinite, ZeroCountsThemAsZeroAndSaysHowMany) {
  Groups groups = all_groups(), reference = all_groups();
  put_two_nonfinite(groups);
  reference.all[kMatrices].G[0][3][4] = 0;
  reference.all[kUnderAdamW].G[1][7] = 0;
  const Report report = Step(groups, Nonfinite::zero).run();
  Step(reference, Nonfinite::propagate).run();
  EXPECT_EQ(report.nonfinite.total(), 2);
  for (std::size_t i = 0; i < 4; ++i)
    EXPECT_TRUE(bitwise_equal(groups.all[kMatrices].X[i], reference.all[kMatrices].X[i])) << i;
  EXPECT_TRUE(bitwise_equal(groups.all[kUnderAdamW].X[1], reference.all[kUnderAdamW].X[1]));
}

TEST(StepNonfinite, PropagateShowsThemInTheirOwnParametersAlone) {
  Groups groups = all_groups();
  put_two_nonfinite(groups);
  const Report report = Step(groups, Nonfinite::propagate).run();
  EXPECT_EQ(report.nonfinite.total(), 0) << "not counted";
  EXPECT_TRUE(groups.all[kMatrices].X[0].isnan().any().item<bool>());
  EXPECT_TRUE(groups.all[kUnderAdamW].X[1][7].isnan().item<bool>());
  EXPECT_TRUE(groups.all[kMatrices].X[2].isfinite().all().item<bool>()) << "the other matrix of the same batch";
  EXPECT_EQ(groups.all[kUnderAdamW].X[1].isfinite().logical_not().sum().item<int64_t>(), 1);
}

void scale_gradients(Groups& groups, double scale) {
  for (Group& group : groups.all) {
    for (at::Tensor& G : group.G) G = G * scale;
  }
}

TEST(StepOfScaledGradients, IsTheStepOfTheGradientsDividedByTheScaleWhichAreOnlyRead) {
  for (bool maximize : {false, true}) {
    Groups groups = all_groups(), reference = all_groups();
    for (Groups* each : {&groups, &reference}) {
      for (Group& group : each->all) group.options.set("maximize", maximize);
    }
    scale_gradients(groups, 1024);
    Step(groups, Nonfinite::propagate, {.scale = at::full({1}, 1024.0f), .found_inf = at::zeros({})}).run();
    Step(reference, Nonfinite::propagate).run();
    scale_gradients(reference, 1024);
    expect_unchanged(groups, snapshot(reference));
  }
}

TEST(StepOfScaledGradients, IsLeftOutWhereOneOverflowedWhateverThePolicy) {
  for (Nonfinite policy : {Nonfinite::propagate, Nonfinite::zero, Nonfinite::raise, Nonfinite::skip_step}) {
    for (const at::Tensor& found_inf : {at::ones({}), at::full({1}, 2.0), at::ones({}, at::kInt)}) {
      Groups groups = all_groups();
      put_two_nonfinite(groups);
      const std::vector<at::Tensor> before = snapshot(groups);
      Step step(groups, policy, {.scale = at::full({}, 8.0), .found_inf = found_inf});
      EXPECT_TRUE(step.run().skipped);
      EXPECT_FALSE(step.wrote());
      expect_unchanged(groups, before);
    }
  }
}

TEST(StepOfScaledGradients, RefusesAScaleThatIsNotOneNumber) {
  for (const at::Tensor& wrong : {at::ones({2}), at::empty({0}), at::ones({}, at::kComplexFloat)}) {
    Groups groups = all_groups();
    const std::vector<at::Tensor> before = snapshot(groups);
    EXPECT_THROW(Step(groups, Nonfinite::propagate, {.scale = wrong, .found_inf = {}}), c10::ValueError);
    EXPECT_THROW(Step(groups, Nonfinite::propagate, {.scale = {}, .found_inf = wrong}), c10::ValueError);
    expect_unchanged(groups, before);
  }
}

}  // namespace

}  // namespace torchdion::engine
