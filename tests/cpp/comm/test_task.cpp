#include "comm/task.h"

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <stdexcept>
#include <vector>

#include "comm/by_hand.h"
#include "comm/scheduler.h"

namespace torchdion::comm {

namespace {

// 1 + 2 + … + depth, a task a level, each of which hands over control `turns` times before it goes deeper.
Task<int> sum_to(int depth, int turns) {
  for (int i = 0; i < turns; ++i) {
    co_await one_turn();
  }
  if (depth == 0) co_return 0;
  const int below = co_await sum_to(depth - 1, turns);
  co_return depth + below;
}

Task<> store_sum(int depth, int turns, int* out) { *out = co_await sum_to(depth, turns); }

struct Nesting {
  int depth, turns;
};

class TaskNesting : public testing::TestWithParam<Nesting> {};

TEST_P(TaskNesting, ValuesComeBackThroughEveryLevelInAsManyTurnsAsWereHandedOver) {
  const auto [depth, turns] = GetParam();
  int sum = -1;
  ByHand root(store_sum(depth, turns, &sum));
  EXPECT_EQ(sum, -1) << "a task must not start by itself";
  EXPECT_EQ(root.turns_to_the_end(), (depth + 1) * turns + 1);
  EXPECT_EQ(sum, depth * (depth + 1) / 2);
}

INSTANTIATE_TEST_SUITE_P(Depths, TaskNesting,
                         testing::Values(Nesting{0, 0}, Nesting{0, 2}, Nesting{1, 1}, Nesting{2, 0}, Nesting{7, 3},
                                         Nesting{200, 1}),
                         [](const auto& info) {
                           return std::to_string(info.param.depth) + "levels" + std::to_string(info.param.turns) +
                                  "turns";
                         });

Task<> sum_of_many(int tasks, int* out) {
  for (int i = 0; i < tasks; ++i) {
    const int value = co_await sum_to(i, 1);
    *out += value;
  }
}

TEST(Task, AwaitsTasksOneAfterTheOtherInALoop) {
  int sum = 0;
  ByHand root(sum_of_many(10, &sum));
  EXPECT_EQ(root.turns_to_the_end(), 55 + 1);
  EXPECT_EQ(sum, 165);  // Σ i(i+1)/2 for i < 10
}

Task<std::unique_ptr<int>> make_pointer(int value) { co_return std::make_unique<int>(value); }

Task<> dereference(int* out) {
  const std::unique_ptr<int> pointer = co_await make_pointer(42);
  *out = *pointer;
}

TEST(Task, MovesAResultOutThatCannotBeCopied) {
  int value = 0;
  run(dereference(&value));
  EXPECT_EQ(value, 42);
}

Task<int> fail_at(int depth, int turns) {
  for (int i = 0; i < turns; ++i) {
    co_await one_turn();
  }
  if (depth == 0) throw std::runtime_error("from the innermost");
  const int below = co_await fail_at(depth - 1, turns);
  co_return below;
}

Task<> catch_and_go_on(int depth, int turns, std::string* caught, int* after) {
  try {
    *after = co_await fail_at(depth, turns);
  } catch (const std::runtime_error& error) {
    *caught = error.what();
  }
  *after = co_await sum_to(3, turns);
}

Task<> let_pass(int depth, int turns) {
  const int value = co_await fail_at(depth, turns);
  ADD_FAILURE() << "went on after an exception, with " << value;
}

class TaskErrors : public testing::TestWithParam<Nesting> {};

TEST_P(TaskErrors, ReachTheCallerWhichMayCatchThemAndGoOn) {
  const auto [depth, turns] = GetParam();
  std::string caught;
  int after = -1;
  run(catch_and_go_on(depth, turns, &caught, &after));
  EXPECT_EQ(caught, "from the innermost");
  EXPECT_EQ(after, 6);
}

TEST_P(TaskErrors, EndEveryTaskThatDoesNotCatchThem) {
  const auto [depth, turns] = GetParam();
  EXPECT_THROW(run(let_pass(depth, turns)), std::runtime_error);
}

INSTANTIATE_TEST_SUITE_P(BeforeAndAfterASuspension, TaskErrors,
                         testing::Values(Nesting{0, 0}, Nesting{0, 1}, Nesting{1, 0}, Nesting{3, 2}),
                         [](const auto& info) {
                           return std::to_string(info.param.depth) + "levels" + std::to_string(info.param.turns) +
                                  "turns";
                         });

// Knows which of its kind are alive, so that a frame destroyed twice or never shows.
class Tracked {
 public:
  Tracked() { alive.insert(this); }
  Tracked(const Tracked&) : Tracked() {}
  ~Tracked() { EXPECT_EQ(alive.erase(this), 1) << "destroyed twice"; }
  static std::set<const Tracked*> alive;
};

std::set<const Tracked*> Tracked::alive;

class TaskDestruction : public testing::Test {
 protected:
  TaskDestruction() { Tracked::alive.clear(); }
  static std::size_t alive() { return Tracked::alive.size(); }
};

Task<int> hold(Tracked parameter, int depth, bool fails) {
  const Tracked before;
  co_await one_turn();
  if (fails && depth == 0) throw std::runtime_error("");
  int below = 0;
  if (depth > 0) {
    below = co_await hold(parameter, depth - 1, fails);
  }
  const Tracked after;
  co_await one_turn();
  co_return below + 1;
}

Task<> hold_all(Tracked parameter, int depth, bool fails) {
  const int levels = co_await hold(parameter, depth, fails);
  EXPECT_EQ(levels, depth + 1);
}

TEST_F(TaskDestruction, OfATaskThatNeverStartedDestroysItsParameters) {
  {
    const Task<> task = hold_all(Tracked(), 2, false);
    EXPECT_EQ(alive(), 1);
  }
  EXPECT_EQ(alive(), 0);
}

TEST_F(TaskDestruction, OfASuspendedTaskDestroysEveryNestedFrame) {
  for (int turns = 1; turns <= 7; ++turns) {  // 4 levels: deeper on turns 1 to 4, then back up
    {
      ByHand root(hold_all(Tracked(), 3, false));
      for (int i = 0; i < turns; ++i) root.turn();
      EXPECT_GE(alive(), 3) << turns;
    }
    EXPECT_EQ(alive(), 0) << "destroyed after turn " << turns;
  }
}

TEST_F(TaskDestruction, OfAFinishedTaskFindsItsLocalsGone) {
  {
    ByHand root(hold_all(Tracked(), 3, false));
    EXPECT_EQ(root.turns_to_the_end(), 9);
    EXPECT_EQ(alive(), 1) << "the root's parameter lives as long as its frame";
  }
  EXPECT_EQ(alive(), 0);
}

TEST_F(TaskDestruction, AfterAnExceptionLeavesNothingBehind) {
  EXPECT_THROW(run(hold_all(Tracked(), 3, true)), std::runtime_error);
  EXPECT_EQ(alive(), 0);
}

TEST_F(TaskDestruction, OfAMovedTaskHappensOnce) {
  {
    Task<> first = hold_all(Tracked(), 1, false);
    const Task<> second = std::move(first);
    EXPECT_EQ(alive(), 1);
  }
  EXPECT_EQ(alive(), 0);
}

}  // namespace

}  // namespace torchdion::comm
