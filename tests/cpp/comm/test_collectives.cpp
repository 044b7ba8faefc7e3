#include "comm/collectives.h"

#include <gtest/gtest.h>

#include <functional>
#include <numeric>

#include "comm/by_hand.h"
#include "comm/failure.h"
#include "comm/ranks_as_threads.h"
#include "comm/scheduler.h"
#include "tensors.h"

namespace torchdion::comm {

namespace {

struct Results {
  at::Tensor reduced, gathered, scattered;
};

Task<> one_of_each(Axis axis, at::Tensor input, Results* results) {
  at::Tensor reduced = input.clone();
  at::Tensor gathered = at::zeros({axis.size, input.numel()}, input.options());
  at::Tensor scattered = at::zeros({input.numel() / axis.size}, input.options());
  co_await all_reduce(reduced, axis);
  const std::vector<int64_t> splits(axis.size, input.numel());
  co_await all_gather(gathered, input, splits, axis);
  co_await reduce_scatter(scattered, input, axis);
  *results = {reduced, gathered, scattered};
}

TEST(Collectives, OnAnAbsentAxisAreTheIdentityAndDoNotSuspend) {
  const at::Tensor input = normal({3, 4}, 1);
  Results results;
  ByHand task(one_of_each(Axis(), input, &results));
  EXPECT_EQ(task.turns_to_the_end(), 1);
  EXPECT_TRUE(bitwise_equal(results.reduced, input));
  EXPECT_TRUE(bitwise_equal(results.gathered, input.view({1, 12})));
  EXPECT_TRUE(bitwise_equal(results.scattered, input.flatten()));
}

TEST(Collectives, OnAGroupOfOneDoNotReachItsBackend) {
  Meeting meeting(1);
  Results results;
  ByHand task(one_of_each(axis_of(&meeting, 0), normal({12}, 1), &results));
  EXPECT_EQ(task.turns_to_the_end(), 1);
  EXPECT_EQ(meeting.logs[0].size(), 0);
}

TEST(Collectives, OnAGroupOfOneAreRealWhereATestWantsThem) {
  Meeting meeting(1);
  const at::Tensor input = normal({12}, 1);
  Results results;
  ByHand task(one_of_each(axis_of(&meeting, 0, {.real_when_alone = true}), input, &results));
  EXPECT_EQ(task.turns_to_the_end(), 3 + 1);
  EXPECT_EQ(meeting.logs[0], (std::vector<std::string>{"all_reduce 12", "all_gather 12", "reduce_scatter 12"}));
  EXPECT_TRUE(bitwise_equal(results.reduced, input));
  EXPECT_TRUE(bitwise_equal(results.scattered, input));
}

class CollectivesOnRanks : public testing::TestWithParam<std::tuple<int, at::ScalarType>> {};

TEST_P(CollectivesOnRanks, SumGatherAndScatterEveryRanksTensorAndSuspendOnceEach) {
  const auto [size, dtype] = GetParam();
  const int64_t numel = 6 * size;
  std::vector<at::Tensor> inputs;
  for (int rank = 0; rank < size; ++rank) inputs.push_back(at::arange(numel, dtype).add_(10 * rank));
  const at::Tensor all = at::stack(inputs), sum = all.sum(0);

  Meeting meeting(size);
  on_every_rank(&meeting, [&, dtype = dtype](Axis axis) {
    Results results;
    ByHand task(one_of_each(axis, inputs[axis.rank], &results));
    EXPECT_EQ(task.turns_to_the_end(), 3 + 1);
    EXPECT_EQ(results.reduced.scalar_type(), dtype);
    EXPECT_TRUE(at::equal(results.reduced, sum));
    EXPECT_TRUE(at::equal(results.gathered, all));
    EXPECT_TRUE(at::equal(results.scattered, sum.slice(0, 6 * axis.rank, 6 * axis.rank + 6)));
  });
  const std::string elements = " " + std::to_string(numel);
  for (const auto& log : meeting.logs) {
    EXPECT_EQ(
        log, (std::vector<std::string>{"all_reduce" + elements, "all_gather" + elements, "reduce_scatter" + elements}));
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, CollectivesOnRanks,
                         testing::Combine(testing::Values(2, 3),
                                          testing::Values(at::kDouble, at::kFloat, at::kBFloat16)));

Task<> there_and_back(Axis axis, at::Tensor input, at::Tensor* gathered, at::Tensor* returned) {
  // Rank k gives each rank r so many elements: 2 k + r.
  std::vector<int64_t> sent, received;
  for (int other = 0; other < axis.size; ++other) {
    sent.push_back(2 * axis.rank + other);
    received.push_back(2 * other + axis.rank);
  }
  *gathered = at::zeros({std::accumulate(received.begin(), received.end(), int64_t{0})}, input.options());
  *returned = at::zeros_like(input);
  co_await all_to_all(*gathered, input, received, sent, axis);
  co_await all_to_all(*returned, *gathered, sent, received, axis, true);
}

TEST(AllToAll, TakesPiecesOfAnySizeThereAndBackAndCountsThemOnce) {
  Meeting meeting(3);
  on_every_rank(&meeting, [](Axis axis) {
    const at::Tensor input = at::arange(6 * axis.rank + 3, at::kFloat).add_(100 * axis.rank);
    at::Tensor gathered, returned;
    run(there_and_back(axis, input, &gathered, &returned));
    EXPECT_TRUE(at::equal(returned, input));
    int64_t offset = 0;
    for (int other = 0; other < 3; ++other) {
      const int64_t size = 2 * other + axis.rank, begin = 2 * other * axis.rank + axis.rank * (axis.rank - 1) / 2;
      const at::Tensor expected = at::arange(begin, begin + size, at::kFloat).add_(100 * other);
      EXPECT_TRUE(at::equal(gathered.narrow(0, offset, size), expected)) << other << " to " << axis.rank;
      offset += size;
    }
    const AxisTraffic traffic = axis.traffic();
    EXPECT_EQ(traffic.elements(), input.numel());
    EXPECT_EQ(traffic.all_to_all.bytes, 4 * (input.numel() - 3 * axis.rank));
    EXPECT_EQ(traffic.completion.elements, 0);
    EXPECT_EQ(traffic.completion.bytes, 4 * (gathered.numel() - 3 * axis.rank));
  });
}

TEST(AllToAll, OnAnAbsentAxisCopies) {
  const at::Tensor input = normal({5}, 1);
  at::Tensor output = at::zeros_like(input);
  EXPECT_TRUE(all_to_all(output, input, {5}, {5}, Axis()).await_ready());
  EXPECT_TRUE(bitwise_equal(output, input));
}

Task<> reduce_temporary(Axis axis, double* sum) {
  Pending pending = all_reduce(at::ones({1000}), axis);
  co_await one_turn();
  pending.await_resume();
  at::Tensor kept = at::ones({1000});
  co_await all_reduce(kept, axis);
  *sum = kept.sum().item<double>();
}

TEST(Collectives, KeepTheMemoryOfTheirTensorsUntilTheyEnd) {
  Meeting meeting(2);
  on_every_rank(&meeting, [](Axis axis) {
    double sum = 0;
    run(reduce_temporary(axis, &sum));  // the sanitizers see a write into memory that is gone
    EXPECT_EQ(sum, 2000);
  });
  at::Tensor tensor = at::ones({4});
  Meeting alone(2);
  {
    const Pending pending = all_reduce(tensor, axis_of(&alone, 0));
    EXPECT_EQ(tensor.storage().use_count(), 2);
  }
  EXPECT_EQ(tensor.storage().use_count(), 1);
}

// A thread of gloo lets go of what it was given when the interpreter may have ended: not of a tensor that Python holds.
TEST(Collectives, HoldNoTensorOfTheirCaller) {
  Meeting alone(2);
  const Axis axis = axis_of(&alone, 0);
  const at::Tensor half = at::ones({2}), whole = at::ones({4}), other = at::ones({4}), three = at::ones({3});
  std::vector<Pending> pending;
  pending.push_back(all_reduce(whole, axis));
  pending.push_back(all_gather(whole, half, {2, 2}, axis));
  pending.push_back(all_gather(whole, three, {3, 1}, axis));
  pending.push_back(scatter(other, whole, {2, 2}, axis));
  pending.push_back(reduce_scatter(half, whole, axis));
  pending.push_back(all_to_all(other, whole, {2, 2}, {2, 2}, axis));
  for (const at::Tensor& tensor : {std::cref(half), std::cref(whole), std::cref(other), std::cref(three)}) {
    EXPECT_EQ(tensor.use_count(), 1);
  }
}

Task<> reduce_three_times(Axis axis, int* done, std::string* caught) {
  at::Tensor tensor = at::ones({2});
  try {
    for (int i = 0; i < 3; ++i) {
      co_await all_reduce(tensor, axis);
      ++*done;
    }
  } catch (const c10::DistBackendError& error) {
    *caught = error.what_without_backtrace();
    throw;
  }
}

// The tasks take turns: the second one's first collective fails, with the first one's third in flight.
TEST(Collectives, AfterAnErrorTasksWaitForWhatTheyHaveInFlightAndStartNothingMore) {
  Meeting meeting(2);
  meeting.fails_at = 2;
  on_every_rank(&meeting, [](Axis axis) {
    int done[2] = {0, 0};
    std::string caught[2];
    const std::vector<Scheduler::Factory> tasks = {
        [&](int) { return reduce_three_times(axis, &done[0], &caught[0]); },
        [&](int) { return reduce_three_times(axis, &done[1], &caught[1]); },
    };
    Scheduler scheduler(2);
    EXPECT_THROW(scheduler.run(tasks), c10::DistBackendError);
    EXPECT_EQ(scheduler.failed(), 1);
    EXPECT_EQ(scheduler.completed(), 0);
    EXPECT_EQ(done[0], 2);
    EXPECT_EQ(done[1], 0);
    EXPECT_FALSE(stopping);
  });
  EXPECT_EQ(meeting.logs[0].size(), 4u);
}

TEST(Collectives, ErrorsReachTheTaskThatAwaitsThem) {
  Meeting meeting(2);
  meeting.fails_at = 1;
  on_every_rank(&meeting, [&](Axis unnamed) {
    const Axis axis = axis_of(&meeting, unnamed.rank, {.name = "fs"});
    int done = 0;
    std::string caught;
    EXPECT_THROW(run(reduce_three_times(axis, &done, &caught)), c10::DistBackendError);
    EXPECT_EQ(done, 1);
    EXPECT_EQ(caught, "torchdion: the all_reduce over the axis 'fs' of 2 ranks failed: connection lost");
  });
}

// As NCCL's moves none on the CPU.
TEST(Collectives, OfTensorsThatTheGroupDoesNotMoveNameTheAxis) {
  Meeting meeting(1);
  const Axis axis = axis_of(&meeting, 0, {.name = "fs", .real_when_alone = true}, c10::DeviceType::CUDA);
  at::Tensor input = at::ones({4}), output = at::ones({4});
  const std::string failed = " over the axis 'fs' of 1 ranks failed: No backend type associated with device type cpu";
  const std::vector<std::pair<const char*, std::function<Pending()>>> collectives = {
      {"all_reduce", [&] { return all_reduce(input, axis); }},
      {"all_gather", [&] { return all_gather(output, input, {4}, axis); }},
      {"reduce_scatter", [&] { return scatter(output, input, {4}, axis); }},
  };
  for (const auto& [kind, start] : collectives) {
    try {
      start();
      FAIL() << kind;
    } catch (const c10::DistBackendError& error) {
      EXPECT_EQ(error.what_without_backtrace(), std::string("torchdion: the ") + kind + failed);
    }
  }
}

// `count` sums of tensors of `numel` elements each, which says in the log whose they are.
Task<> reduce_many(Axis axis, int64_t numel, int count) {
  for (int i = 0; i < count; ++i) {
    at::Tensor tensor = at::full({numel}, i, at::kDouble);
    co_await all_reduce(tensor, axis);
    EXPECT_EQ(tensor[0].item<double>(), i * axis.size);
  }
}

class CollectivesOrder : public testing::TestWithParam<int> {};

TEST_P(CollectivesOrder, IsTheSameOnEveryRankWhateverTheTiming) {
  constexpr int kTasks = 5;
  std::vector<std::vector<std::string>> orders;
  for (const int slow_rank : {-1, 0, 1, 2}) {
    Meeting meeting(3);
    meeting.delay = [slow_rank](int rank, int index) {
      if (rank == slow_rank || index % 3 == rank) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    };
    on_every_rank(&meeting, [width = GetParam()](Axis axis) {
      std::vector<Scheduler::Factory> tasks;
      for (int i = 0; i < kTasks; ++i) tasks.push_back([axis, i](int) { return reduce_many(axis, i + 1, 4 - i % 3); });
      Scheduler(width).run(tasks);
    });
    orders.insert(orders.end(), meeting.logs.begin(), meeting.logs.end());
  }
  for (const auto& order : orders) EXPECT_EQ(order, orders[0]);
  EXPECT_EQ(orders[0].size(), 4 + 3 + 2 + 4 + 3);
}

INSTANTIATE_TEST_SUITE_P(Widths, CollectivesOrder, testing::Values(1, 2, 4));

}  // namespace

}  // namespace torchdion::comm
