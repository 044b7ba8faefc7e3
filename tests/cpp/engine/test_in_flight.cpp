#include "engine/in_flight.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>

#include "comm/line.h"
#include "comm/ranks_as_threads.h"
#include "engine/step.h"
#include "engine/step_groups.h"
#include "sentences.h"

namespace torchdion::engine {

namespace {

// A 12×20 matrix whose replicas exchange one column each of P and R, in flight or not, with a gradient of each rank.
Groups double_dion_groups(bool delayed, const Axis& replicas = {}) {
  Group group = group_under("double_dion", {{"delayed", delayed}, {"mu", 0.5}});
  group.X = {normal({12, 20}, 1)};
  group.G = {normal({12, 20}, 2 + replicas.rank)};
  group.steps = {at::zeros({})};
  for (const algorithms::State& state : group.algorithm->states) {
    const bool of_replicas = state.rank_option == "replicate_rank_fraction";
    const bool is_factor = state.shape == algorithms::StateShape::factor;
    group.states.push_back(
        {is_factor ? normal({12, of_replicas ? 1 : 4}, 10 + of_replicas) : normal({12, 20}, 20 + of_replicas)});
  }
  if (!replicas.absent()) group.layouts = {{.replicas = replicas}};
  return {{group}};
}

// The second groups of ranks as threads.
struct Second {
  explicit Second(int size) : meeting(size) {}
  void give_to(const Axis& axis) {
    const Axis second = comm::axis_of(&meeting, axis.rank, {.real_when_alone = true});
    axis.set_in_flight_group(second.line->group);
  }
  comm::Meeting meeting;
};

template <class Error, class Call>
void expect_sentence(const Call& call, const char* part) {
  const std::string sentence = sentence_of<Error>(call);
  EXPECT_NE(sentence.find(part), std::string::npos) << sentence;
}

bool becomes_true(const std::function<bool()>& holds) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!holds()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

TEST(InFlight, AStepReturnsBeforeReplicasHaveExchangedAnything) {
  comm::Meeting first(2);
  Second second(2);
  std::atomic<int> returned = 0;
  second.meeting.delay = [&](int, int) { EXPECT_TRUE(becomes_true([&] { return returned == 2; })); };
  comm::on_every_rank(&first, [&](Axis replicas) {
    second.give_to(replicas);
    Groups groups = double_dion_groups(true, replicas);
    const Report report = [&] {
      Step step(groups, Nonfinite::propagate);
      const Report of_step = step.run();
      EXPECT_EQ(replicas.traffic().elements(), 0);
      ++returned;
      EXPECT_EQ(step.take_in_flight()->wait().without_signal.total(), 0);
      return of_step;
    }();
    EXPECT_EQ(replicas.traffic().elements(), 12 + 20);
    EXPECT_EQ(report.expected_traffic.begin()->second, 12 + 20);
  });
  EXPECT_TRUE(first.logs[0].empty());
  EXPECT_FALSE(second.meeting.logs[0].empty());
}

TEST(InFlight, WhatIsLeftIsTheFirstStage) {
  Groups delayed = double_dion_groups(true), plain = double_dion_groups(false);
  Group &of_delayed = delayed.all[0], &of_plain = plain.all[0];
  enum { kShared, kSharedQ, kOwn, kOwnQ };
  const at::Tensor B1 = 0.999 * of_delayed.states[kOwn][0] + of_delayed.G[0];
  Step step(delayed, Nonfinite::propagate);
  step.run();
  const at::Tensor before = of_delayed.states[kShared][0].clone();  // what is in flight does not touch it
  step.take_in_flight()->wait();
  const at::Tensor exchanged = B1 - of_delayed.states[kOwn][0];  // P₁ R₁ᵀ
  EXPECT_LE(relative_error(of_delayed.states[kShared][0] - before, exchanged), 1e-12);
  Step(plain, Nonfinite::propagate).run();
  EXPECT_TRUE(bitwise_equal(of_delayed.states[kOwn][0], of_plain.states[kOwn][0]));
  EXPECT_TRUE(bitwise_equal(of_delayed.states[kOwnQ][0], of_plain.states[kOwnQ][0]));
  // One without a gradient of its own has the same second stage, which saw none of what the first one found.
  Groups quiet = double_dion_groups(true);
  quiet.all[0].G[0].zero_();
  Step(quiet, Nonfinite::propagate).run();
  EXPECT_TRUE(bitwise_equal(of_delayed.X[0], quiet.all[0].X[0]));
  EXPECT_FALSE(bitwise_equal(of_delayed.X[0], of_plain.X[0]));
}

TEST(InFlight, AFailureIsThatOfWhoWaits) {
  comm::Meeting first(2);
  Second second(2);
  second.meeting.fails_at = 0;
  comm::on_every_rank(&first, [&](Axis replicas) {
    second.give_to(replicas);
    Step step(double_dion_groups(true, replicas), Nonfinite::propagate);
    step.run();
    const std::unique_ptr<InFlight> in_flight = step.take_in_flight();
    expect_sentence<c10::DistBackendError>([&] { in_flight->wait(); }, "connection lost (in batch 1 of 1, 1 matri");
    EXPECT_EQ(in_flight->completed(), 0);
    EXPECT_EQ(in_flight->wait().without_signal.total(), 0);  // a second call has nothing to wait for
  });
}

TEST(InFlight, ItsEndWaits) {
  comm::Meeting first(2);
  Second second(2);
  std::atomic<int> waited = 0;
  second.meeting.delay = [&](int, int) { ++waited; };
  comm::on_every_rank(&first, [&](Axis replicas) {
    second.give_to(replicas);
    Step(double_dion_groups(true, replicas), Nonfinite::propagate).run();
    EXPECT_GT(replicas.traffic().elements(), 0);
  });
  EXPECT_GT(waited, 0);
}

TEST(InFlight, EveryAxisNeedsASecondGroupBeforeAnythingIsWritten) {
  comm::Meeting first(1);
  const Axis replicas = comm::axis_of(&first, 0, {.name = "dp", .real_when_alone = true});
  Groups groups = double_dion_groups(true, replicas);
  const std::vector<at::Tensor> before = snapshot(groups);
  Step step(groups, Nonfinite::propagate);
  ASSERT_EQ(step.in_flight()->axes_without_group().size(), 1);
  expect_sentence<c10::ValueError>([&] { step.run(); }, "the axis 'dp' must have a second process group");
  EXPECT_FALSE(step.wrote());
  expect_unchanged(groups, before);
}

TEST(InFlight, ASecondGroupIsAnotherOneOfTheSameRanks) {
  comm::Meeting two(2), three(3);
  const Axis axis = comm::axis_of(&two, 1, {.name = "dp"});
  for (const Axis& other : {comm::axis_of(&two, 0), comm::axis_of(&three, 1), axis}) {
    expect_sentence<c10::ValueError>([&] { axis.set_in_flight_group(other.line->group); },
                                     "must be another one of the same ranks, rank 1 of 2 on the axis 'dp', got");
  }
  expect_sentence<c10::ValueError>([&] { axis.set_in_flight_group(nullptr); }, "the group must be one, got null");
}

TEST(InFlight, AStepThatIsLeftOutLeavesNothing) {
  Groups groups = double_dion_groups(true);
  groups.all[0].G[0][0][0] = std::numeric_limits<double>::quiet_NaN();
  Step step(groups, Nonfinite::skip_step);
  EXPECT_TRUE(step.run().skipped);
  EXPECT_EQ(step.take_in_flight(), nullptr);
}

TEST(InFlight, GradientsAreNotKept) {
  Groups groups = double_dion_groups(true);
  std::unique_ptr<InFlight> in_flight;
  {
    Step step(groups, Nonfinite::propagate);
    step.run();
    in_flight = step.take_in_flight();
  }
  EXPECT_EQ(groups.all[0].G[0].use_count(), 1);
  const at::Tensor momentum = groups.all[0].states[0][0];
  groups = {};
  EXPECT_GE(momentum.use_count(), 2);  // it may still be written
  in_flight->wait();
}

TEST(InFlight, AForkedProcessWaitsForNoThread) {
  comm::Meeting first(1);
  Second second(1);
  std::atomic<bool> forked = false;
  second.meeting.delay = [&](int, int) { becomes_true([&] { return forked.load(); }); };
  const Axis replicas = comm::axis_of(&first, 0, {.real_when_alone = true});
  second.give_to(replicas);
  Step step(double_dion_groups(true, replicas), Nonfinite::propagate);
  step.run();
  std::unique_ptr<InFlight> in_flight = step.take_in_flight();
  const pid_t child = fork();
  if (child == 0) {
    alarm(10);
    in_flight.reset();
    _exit(0);
  }
  forked = true;
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

}  // namespace

}  // namespace torchdion::engine
