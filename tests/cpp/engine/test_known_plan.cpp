#include "engine/plan.h"

#include <ATen/Parallel.h>
#include <ATen/ops/_efficientzerotensor.h>
#include <gtest/gtest.h>

#include <functional>

#include "engine/step.h"
#include "engine/step_groups.h"

namespace torchdion::engine {

namespace {

// Knows the plan of all_groups().
KnownPlan known_plan(const Groups& groups) {
  KnownPlan known;
  known.know(groups, std::make_shared<Plan>(plan_of(groups)));
  return known;
}

TEST(KnownPlan, IsThatOfGroupsWithOtherAddressesNumbersAndRates) {
  KnownPlan known = known_plan(all_groups());
  Groups groups = all_groups();
  for (at::Tensor* tensor : tensors_of(groups)) *tensor = tensor->clone().mul_(3);
  for (Group& group : groups.all) group.options.set("lr", 0.5);
  EXPECT_NE(known.plan_of(groups), nullptr);
}

TEST(KnownPlan, IsNoneBeforeTheFirstStep) { EXPECT_EQ(KnownPlan().plan_of(all_groups()), nullptr); }

const std::vector<std::pair<const char*, std::function<void(Groups&)>>> kOthers = {
    {"strides of a parameter", [](Groups& groups) { groups.all[0].X[3] = groups.all[0].X[3].t(); }},
    {"strides of a gradient", [](Groups& groups) { groups.all[0].G[3] = groups.all[0].G[3].t(); }},
    {"a dtype of a gradient", [](Groups& groups) { groups.all[0].G[1] = groups.all[0].G[1].to(at::kFloat); }},
    {"a dtype of a state",
     [](Groups& groups) { groups.all[0].states[0][1] = groups.all[0].states[0][1].to(at::kFloat); }},
    {"a rank",
     [](Groups& groups) {
       groups.all[0].states[kQ][0] = at::zeros({12, 5}, at::kDouble);
     }},
    {"a gradient of zeros",
     [](Groups& groups) {
       groups.all[0].G[0] = at::_efficientzerotensor({12, 20}, at::TensorOptions(at::kDouble));
     }},
    {"a negative view", [](Groups& groups) { groups.all[0].G[0] = groups.all[0].G[0]._neg_view(); }},
    {"a count of another dtype", [](Groups& groups) { groups.all[0].steps[0] = at::zeros({}, at::kLong); }},
    {"memory", [](Groups& groups) { groups.all[0].X[0].storage().set_nbytes(0); }},
    {"a parameter less", [](Groups& groups) { groups.all[0] = single(groups.all[0], 0); }},
    {"a group less", [](Groups& groups) { groups.all.pop_back(); }},
    {"an option", [](Groups& groups) { groups.all[0].options.set("mu", 0.5); }},
    {"another algorithm", [](Groups& groups) { std::swap(groups.all[2], groups.all[3]); }},
    {"a layout",
     [](Groups& groups) {
       groups.all[0].layouts.resize(4);
       groups.all[0].layouts[0].has_averaged_copies = true;
     }},
};

TEST(KnownPlan, IsNotThatOfGroupsWithAnotherOfAnything) {
  for (const auto& [what, change] : kOthers) {
    KnownPlan known = known_plan(all_groups());
    Groups groups = all_groups();
    change(groups);
    EXPECT_EQ(known.plan_of(groups), nullptr) << what;
  }
}

TEST(KnownPlan, IsNotThatOfAnotherNumberOfThreads) {
  const int threads = at::get_num_threads();
  KnownPlan known = known_plan(all_groups());
  at::set_num_threads(threads + 1);
  EXPECT_EQ(known.plan_of(all_groups()), nullptr);
  at::set_num_threads(threads);
  EXPECT_NE(known.plan_of(all_groups()), nullptr);
}

void count(Groups& groups, std::vector<double> steps) {
  for (std::size_t i = 0; i < steps.size(); ++i) groups.all[0].steps[i].fill_(steps[i]);
}

TEST(KnownPlan, HasTheClassesOfStepsThatThereAreNow) {
  Groups groups = all_groups();
  count(groups, {0, 0, 2, 0});  // classes 1 and 4 of matrices that are alike but for that
  KnownPlan known = known_plan(groups);
  count(groups, {1, 1, 3, 1});
  const auto plan = known.plan_of(groups);
  ASSERT_NE(plan, nullptr);
  const Plan fresh = plan_of(groups);
  ASSERT_EQ(plan->alike.size(), fresh.alike.size());
  for (std::size_t i = 0; i < fresh.alike.size(); ++i) {
    EXPECT_EQ(plan->alike[i].step, fresh.alike[i].step);
    EXPECT_EQ(plan->alike[i].members, fresh.alike[i].members);
  }
}

TEST(KnownPlan, IsAskedAnewWhereClassesOfStepsPartOrMeet) {
  Groups groups = all_groups();
  count(groups, {0, 0, 2, 0});
  KnownPlan known = known_plan(groups);
  count(groups, {3, 3, 3, 3});  // all of class 4
  EXPECT_EQ(known.plan_of(groups), nullptr);
  known = known_plan(groups);
  count(groups, {4, 3, 3, 3});  // one of class 8
  EXPECT_EQ(known.plan_of(groups), nullptr);
}

// A step that takes a known plan is the one that would have made its own.
TEST(KnownPlan, GivesAStepTheSameBits) {
  Groups groups = all_groups(), others = all_groups();
  KnownPlan known;
  for (int i = 0; i < 3; ++i) {
    Step(groups, Nonfinite::propagate, {}, &known).run();
    Step(others, Nonfinite::propagate).run();
  }
  const std::vector<at::Tensor*> all = tensors_of(groups), expected = tensors_of(others);
  for (std::size_t i = 0; i < all.size(); ++i) EXPECT_TRUE(bitwise_equal(*all[i], *expected[i])) << "tensor " << i;
}

}  // namespace

}  // namespace torchdion::engine
