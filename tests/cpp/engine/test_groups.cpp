#include "engine/groups.h"

#include <ATen/ops/full.h>
#include <gtest/gtest.h>

namespace torchdion::engine {

namespace {

const algorithms::Algorithm& lion() { return algorithms::algorithm("lion"); }

GroupOptions with_multiplier(double multiplier) {
  GroupOptions options{algorithms::options_of(lion(), {})};
  options.values.set("lr", 0.5);
  options.values.set("lr_multiplier", multiplier);
  return options;
}

TEST(GroupOf, MultipliesItsRateWhetherThatIsANumberOrATensor) {
  GroupOptions options = with_multiplier(0.25);
  EXPECT_EQ(group_of(lion(), options, at::kCPU).options.number("lr"), 0.125);
  options.lr = at::full({1}, 2.0);
  options.weight_decay = at::full({}, 0.75);
  const Group group = group_of(lion(), options, at::kCPU);
  EXPECT_EQ(group.options.number("lr"), 0.5);
  EXPECT_EQ(group.options.number("weight_decay"), 0.75);
  EXPECT_FALSE(group.multipliers.defined());
}

TEST(GroupOf, LeavesARateThatCapturableStepsReadOnTheirDeviceThere) {
  GroupOptions options = with_multiplier(0.25);
  options.values.set("capturable", true);
  options.lr = at::full({}, 2.0);
  const Group there = group_of(lion(), options, at::kCPU);
  EXPECT_TRUE(there.multipliers.lr.is_same(options.lr));
  EXPECT_EQ(there.options.number("lr"), 0.25) << "what the tensor is multiplied by";
  const Group elsewhere = group_of(lion(), options, at::kCUDA);
  EXPECT_FALSE(elsewhere.multipliers.lr.defined());
  EXPECT_EQ(elsewhere.options.number("lr"), 0.5);
}

TEST(GroupOf, HasTheOptionsOfItsAlgorithmAlone) {
  const Group group = group_of(lion(), with_multiplier(1), at::kCPU);
  EXPECT_FALSE(group.options.has("rank_fraction"));
  EXPECT_EQ(group.options.pair("betas"), algorithms::Pair(0.95, 0.98));
  EXPECT_TRUE(algorithms::factors_of(*group.algorithm).empty());
  EXPECT_FALSE(group.takes_matrices());
}

}  // namespace

}  // namespace torchdion::engine
