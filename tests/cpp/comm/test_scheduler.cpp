#include "comm/scheduler.h"

#include <gtest/gtest.h>

#include <set>
#include <stdexcept>
#include <string>

#include "comm/by_hand.h"

namespace torchdion::comm {

namespace {

// Notes its letter and the number of each of its `turns` turns, from a nested task so that nesting must not matter.
Task<> note(std::string* trace, char letter, int turn) {
  *trace += std::string(trace->empty() ? "" : " ") + letter + std::to_string(turn);
  co_await one_turn();
}

Task<> noting(std::string* trace, char letter, int turns) {
  for (int turn = 0; turn < turns - 1; ++turn) {
    co_await note(trace, letter, turn);
  }
  *trace += std::string(trace->empty() ? "" : " ") + letter + std::to_string(turns - 1);
}

struct Turns {
  int width;
  std::string trace;
};

class SchedulerOrder : public testing::TestWithParam<Turns> {};

TEST_P(SchedulerOrder, IsRoundRobinWithOneNewTaskARound) {
  std::string trace;
  std::vector<Scheduler::Factory> tasks;
  for (char letter : {'A', 'B', 'C'}) tasks.push_back([&trace, letter](int) { return noting(&trace, letter, 3); });
  Scheduler scheduler(GetParam().width);
  scheduler.run(tasks);
  EXPECT_EQ(trace, GetParam().trace);
  EXPECT_EQ(scheduler.completed(), 3);
}

INSTANTIATE_TEST_SUITE_P(Widths, SchedulerOrder,
                         testing::Values(Turns{1, "A0 A1 A2 B0 B1 B2 C0 C1 C2"}, Turns{2, "A0 A1 B0 A2 B1 B2 C0 C1 C2"},
                                         Turns{3, "A0 A1 B0 A2 B1 C0 B2 C1 C2"},
                                         Turns{9, "A0 A1 B0 A2 B1 C0 B2 C1 C2"}),
                         [](const auto& info) { return "Width" + std::to_string(info.param.width); });

TEST(Scheduler, StartsEarlyTasksBeforeAllOthersAndGoesOnWithThemAfter) {
  std::string trace;
  std::vector<Scheduler::Factory> tasks;
  for (char letter : {'A', 'B', 'C', 'D'}) {
    tasks.push_back([&trace, letter](int slot) {
      EXPECT_EQ(slot == Scheduler::kNoSlot, letter < 'C');
      return noting(&trace, letter, 2);
    });
  }
  Scheduler scheduler(1);
  scheduler.run(tasks, /*early=*/2, [&] { trace += " then"; });
  EXPECT_EQ(trace, "A0 B0 then C0 C1 D0 D1 A1 B1");
  EXPECT_EQ(scheduler.completed(), 4);
}

TEST(Scheduler, EndsEarlyTasksWhereWhatFollowsFails) {
  std::string trace;
  std::vector<Scheduler::Factory> tasks;
  for (char letter : {'A', 'B'}) tasks.push_back([&trace, letter](int) { return noting(&trace, letter, 2); });
  Scheduler scheduler(1);
  EXPECT_THROW(scheduler.run(tasks, /*early=*/1, [] { throw std::runtime_error("no"); }), std::runtime_error);
  EXPECT_EQ(trace, "A0 A1");  // and B was never begun
}

TEST(Scheduler, HasNothingToDoWithoutTasks) {
  Scheduler scheduler(2);
  scheduler.run({});
  EXPECT_EQ(scheduler.completed(), 0);
}

// What a list of tasks did, in order. A task counts as started when its factory has been called.
struct Record {
  std::set<int> taken;  // slots of the tasks alive
  std::size_t most_alive = 0;
  std::vector<int> started, ended, failed;
  std::size_t started_before_failure = 0;
};

Task<> recorded(Record* record, int slot, int index, int turns, bool fails) {
  EXPECT_TRUE(record->taken.insert(slot).second) << "slot " << slot << " is another task's, task " << index;
  record->most_alive = std::max(record->most_alive, record->taken.size());
  for (int turn = 0; turn < turns; ++turn) {
    co_await one_turn();
  }
  record->taken.erase(slot);
  if (fails) {
    if (record->failed.empty()) record->started_before_failure = record->started.size();
    record->failed.push_back(index);
    throw std::runtime_error("task " + std::to_string(index));
  }
  record->ended.push_back(index);
}

class SchedulerWidth : public testing::TestWithParam<int> {};

TEST_P(SchedulerWidth, BoundsTheTasksAliveEachInASlotOfItsOwn) {
  constexpr int kTasks = 40, kTurns = 5;
  Record record;
  std::vector<Scheduler::Factory> tasks;
  for (int i = 0; i < kTasks; ++i) {
    tasks.push_back([&record, i](int slot) {
      record.started.push_back(i);
      return recorded(&record, slot, i, i * 7 % kTurns + 10, false);
    });
  }
  Scheduler scheduler(GetParam());
  scheduler.run(tasks);
  EXPECT_EQ(record.most_alive, GetParam()) << "10 turns a task and one start a round: up to 10 tasks overlap";
  EXPECT_EQ(record.ended.size(), kTasks);
  EXPECT_EQ(scheduler.completed(), kTasks);
  for (int i = 0; i < kTasks; ++i) EXPECT_EQ(record.started[i], i);
}

INSTANTIATE_TEST_SUITE_P(Widths, SchedulerWidth, testing::Values(1, 2, 3, 8));

// 8 tasks of which `failing` throw, each after `turns` turns where the others take 4; its message is left in `message`.
Record run_failing(Scheduler& scheduler, const std::set<int>& failing, int turns, std::string* message) {
  Record record;
  std::vector<Scheduler::Factory> tasks;
  for (int i = 0; i < 8; ++i) {
    const bool fails = failing.count(i) > 0;
    tasks.push_back([&record, i, fails, turns](int slot) {
      record.started.push_back(i);
      return recorded(&record, slot, i, fails ? turns : 4, fails);
    });
  }
  try {
    scheduler.run(tasks);
  } catch (const std::runtime_error& error) {
    *message = error.what();
  }
  return record;
}

class SchedulerError : public testing::TestWithParam<std::tuple<int, int, int>> {};

TEST_P(SchedulerError, StartsNoFurtherTaskAndLetsThoseAliveEnd) {
  const auto [width, failing, turns] = GetParam();
  Scheduler scheduler(width);
  std::string message;
  const Record record = run_failing(scheduler, {failing}, turns, &message);
  EXPECT_EQ(message, "task " + std::to_string(failing));
  EXPECT_EQ(record.failed, std::vector<int>{failing});
  EXPECT_EQ(record.started.size(), record.started_before_failure);
  EXPECT_LT(record.started.size(), 8);
  EXPECT_EQ(record.ended.size(), record.started.size() - 1);
  EXPECT_EQ(scheduler.completed(), record.ended.size());
}

INSTANTIATE_TEST_SUITE_P(BeforeAndAfterASuspension, SchedulerError,
                         testing::Combine(testing::Values(1, 2, 3), testing::Values(0, 1, 4),
                                          testing::Values(0, 1, 3)));

TEST(Scheduler, RethrowsTheErrorThatCameFirst) {
  Scheduler scheduler(3);
  std::string message;
  const Record record = run_failing(scheduler, {1, 2}, 0, &message);
  EXPECT_EQ(record.failed, std::vector<int>{1}) << "2 would start on the next round";
  const Record both = run_failing(scheduler, {1, 2}, 2, &message);
  EXPECT_EQ(both.failed, (std::vector<int>{1, 2}));
  EXPECT_EQ(message, "task 1");
  EXPECT_EQ(scheduler.completed(), 1) << "task 0";
}

TEST(Scheduler, TreatsAFactoryThatThrowsAsATaskThatDoes) {
  Record record;
  Scheduler scheduler(2);
  const std::vector<Scheduler::Factory> tasks = {
      [&record](int slot) { return recorded(&record, slot, 0, 4, false); },
      [](int) -> Task<> { throw std::runtime_error("no memory"); },
      [&record](int slot) { return recorded(&record, slot, 2, 4, false); },
  };
  EXPECT_THROW(scheduler.run(tasks), std::runtime_error);
  EXPECT_EQ(record.ended, std::vector<int>{0});
  EXPECT_EQ(scheduler.completed(), 1);
}

TEST(Scheduler, CanBeUsedAgainAfterAnError) {
  Record record;
  Scheduler scheduler(2);
  EXPECT_THROW(scheduler.run({[&record](int slot) { return recorded(&record, slot, 0, 1, true); }}),
               std::runtime_error);
  EXPECT_EQ(scheduler.completed(), 0);
  scheduler.run({[&record](int slot) { return recorded(&record, slot, 1, 1, false); }});
  EXPECT_EQ(scheduler.completed(), 1);
}

}  // namespace

}  // namespace torchdion::comm
