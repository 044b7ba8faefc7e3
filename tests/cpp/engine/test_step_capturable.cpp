// Steps whose numbers lie on the device, on the CPU: what a captured graph would replay.
#include <gtest/gtest.h>

#include "engine/step.h"
#include "engine/step_groups.h"

namespace torchdion::engine {

namespace {

constexpr double kLr = 0.03, kWeightDecay = 0.2;

// Every role, with a learning rate and a weight decay other than those of the hyperparameters.
Groups with_rates(bool capturable, std::string_view orthonormalize = "auto") {
  Groups groups = all_groups();
  groups.capturable = capturable;
  const linalg::Multipliers multipliers{at::full({}, kLr, at::kDouble), at::full({1}, kWeightDecay, at::kDouble)};
  for (Group& group : groups.all) {
    if (group.takes_matrices()) group.options.set("orthonormalize", orthonormalize);
    group.options.set("lr", capturable ? 1 : kLr);
    group.options.set("weight_decay", capturable ? 1 : kWeightDecay);
    if (capturable) group.multipliers = multipliers;
  }
  return groups;
}

class StepOnDevice : public testing::TestWithParam<const char*> {};

TEST_P(StepOnDevice, EqualsAnyOther) {
  Groups groups = with_rates(true, GetParam()), reference = with_rates(false, GetParam());
  for (int step = 0; step < 3; ++step) {
    const Report report = Step(groups, Nonfinite::propagate).run();
    EXPECT_FALSE(report.left_out.defined());
    Step(reference, Nonfinite::propagate).run();
  }
  expect_unchanged(groups, snapshot(reference));
  EXPECT_EQ(groups.all[kUnderAdamW].steps[0].item<double>(), 3);
}

INSTANTIATE_TEST_SUITE_P(Methods, StepOnDevice, testing::Values("auto", "rcqr", "cholesky_qr"));

TEST(CapturableStep, UndoesTheScaleOfTheGradients) {
  Groups groups = with_rates(true), reference = with_rates(true);
  const auto scale = [&](double factor) {
    for (Group& group : groups.all) {
      for (at::Tensor& G : group.G) G.mul_(factor);
    }
  };
  scale(1024);
  Step(groups, Nonfinite::propagate, {at::full({}, 1024.0f), at::zeros({})}).run();
  scale(1.0 / 1024);
  Step(reference, Nonfinite::propagate).run();
  expect_unchanged(groups, snapshot(reference));
}

TEST(CapturableStep, WritesNothingWhereTheScalerFoundAnOverflow) {
  Groups groups = with_rates(true);
  Step(groups, Nonfinite::propagate).run();  // so that momenta are not zero
  put_two_nonfinite(groups);
  const std::vector<at::Tensor> before = snapshot(groups);
  const Report report = Step(groups, Nonfinite::propagate, {at::full({}, 8.0f), at::ones({})}).run();
  EXPECT_NE(report.left_out.item<float>(), 0);
  EXPECT_EQ(report.without_signal.total(), 0);
  expect_unchanged(groups, before);
}

TEST(CapturableStep, SkipsAWholeStepForOneEntryAndCountsAll) {
  Groups groups = with_rates(true), reference = with_rates(true);
  put_two_nonfinite(groups);
  const std::vector<at::Tensor> before = snapshot(groups);
  const Report report = Step(groups, Nonfinite::skip_step).run();
  EXPECT_NE(report.left_out.item<float>(), 0);
  EXPECT_EQ(report.nonfinite.total(), 2);
  expect_unchanged(groups, before);
  for (Group& group : groups.all) {
    for (at::Tensor& G : group.G) G.nan_to_num_(0, 0, 0);
  }
  reference.all[kMatrices].G[0][3][4] = 0;
  reference.all[kUnderAdamW].G[1][7] = 0;
  EXPECT_EQ(Step(groups, Nonfinite::skip_step).run().left_out.item<float>(), 0);
  Step(reference, Nonfinite::propagate).run();
  expect_unchanged(groups, snapshot(reference));
}

TEST(CapturableStep, RefusesWhatWouldMakeTheHostWaitAndCountsElsewhere) {
  EXPECT_THROW(Step(with_rates(true), Nonfinite::raise), c10::ValueError);
  Groups counted_in_integers = with_rates(true);
  counted_in_integers.all[kUnderLion].steps[0] = at::zeros({}, at::kLong);
  EXPECT_THROW(Step(counted_in_integers, Nonfinite::propagate), c10::ValueError);
  Groups two_rates = with_rates(true);
  two_rates.all[kMatrices].multipliers.lr = at::ones({2});
  EXPECT_THROW(Step(two_rates, Nonfinite::propagate), c10::ValueError);
  Groups whole_rate = with_rates(true);
  whole_rate.all[kUnderAdamW].multipliers.weight_decay = at::ones({1}, at::kLong);
  EXPECT_THROW(Step(whole_rate, Nonfinite::propagate), c10::ValueError);
}

}  // namespace

}  // namespace torchdion::engine
