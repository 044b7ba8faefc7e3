#include "comm/by_cpu.h"

#include <gtest/gtest.h>
#include <torchdion/process_group.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <map>
#include <numeric>
#include <thread>

#include "comm/blocking.h"
#include "comm/collectives.h"
#include "comm/line.h"
#include "comm/ranks_as_threads.h"
#include "comm/scheduler.h"
#include "comm/stand_in_device.h"
#include "comm/sums.h"
#include "tensors.h"

namespace torchdion::comm {

namespace {

constexpr int kRanks = 3;

// The backend of a group for the stand-in device.
enum class Has { gloo, nothing };

// body(axis) on a thread for each rank, over gloo, which refuses the tensors of the stand-in device.
void over_gloo(Has has, const std::function<void(Axis)>& body) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([&, rank] {
      const GlooOptions options{.timeout = std::chrono::seconds(20), .hostname = "127.0.0.1"};
      const auto group = gloo_group(store, rank, kRanks, options);
      if (has == Has::gloo) {
        group->setBackend(kStandIn.type(), c10d::ProcessGroup::BackendType::GLOO, group->getBackend(at::kCPU));
      }
      try {
        body(Axis(group, {.name = "fs"}));
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

using ByName = std::map<std::string, at::Tensor>;

Task<> every_collective(Axis axis, at::Tensor input, ByName* results) {
  const at::TensorOptions options = input.options();
  const std::vector<int64_t> nine_each(kRanks, 9), three_each(kRanks, 3), splits{4, 0, 5};
  const int64_t own = splits[axis.rank];

  at::Tensor reduced = input.clone();
  co_await all_reduce(reduced, axis);
  (*results)["all_reduce"] = reduced;

  at::Tensor gathered = at::zeros({kRanks, 9}, options);
  co_await all_gather(gathered, input, nine_each, axis);
  (*results)["all_gather"] = gathered;

  at::Tensor pieces = at::zeros({9}, options);
  const at::Tensor piece = input.narrow(0, 0, own);
  co_await all_gather(pieces, piece, splits, axis);
  (*results)["all_gather of unequal pieces"] = pieces;

  at::Tensor scattered = at::zeros({kRanks * own}, options);
  co_await scatter(scattered, input, splits, axis);
  // Messages on a CPU leave a rank's own piece unwritten.
  scattered.narrow(0, axis.rank * own, own).copy_(input.narrow(0, axis.rank == 2 ? 4 : 0, own));
  (*results)["scatter"] = scattered;

  at::Tensor exchanged = at::zeros({9}, options);
  co_await all_to_all(exchanged, input, three_each, three_each, axis);
  (*results)["all_to_all"] = exchanged;

  at::Tensor share = at::zeros({3}, options);
  co_await reduce_scatter(share, input, axis);
  (*results)["reduce_scatter"] = share;
}

at::Tensor input_of(int rank) { return normal({9}, 1 + rank, at::kFloat); }

class ByCpu : public testing::TestWithParam<Has> {};

TEST_P(ByCpu, EveryCollectiveOfADeviceGivesTheBitsOfTheCpuAndCountsTheSame) {
  over_gloo(GetParam(), [](Axis axis) {
    ByName expected, found;
    run(every_collective(axis, input_of(axis.rank), &expected));
    const AxisTraffic once = axis.traffic();
    run(every_collective(axis, input_of(axis.rank).to(kStandIn), &found));
    ASSERT_EQ(found.size(), 6u);
    for (const auto& [name, tensor] : found) {
      EXPECT_EQ(tensor.device(), kStandIn) << name;
      EXPECT_TRUE(bitwise_equal(tensor.cpu(), expected[name])) << name;
      EXPECT_GT(expected[name].abs().sum().item<double>(), axis.rank == 1 && name == "scatter" ? -1 : 0) << name;
    }
    EXPECT_EQ(axis.traffic().elements(), 2 * once.elements());
    EXPECT_EQ(axis.traffic().bytes(), 2 * once.bytes());
  });
}

Task<> sum_by_shares(Axis axis, at::Tensor stack, Shares shares) {
  const at::Tensor share = co_await sum_shares(stack, axis, Order::fixed, shares);
  co_await gather_shares(stack, share, axis, shares);
}

TEST_P(ByCpu, SumsOfSharesTakeARanksOwnTermToo) {
  for (const at::ScalarType dtype : {at::kDouble, at::kBFloat16}) {
    const auto term = [&](int rank) { return normal({4, 5}, 1 + rank, dtype); };
    const at::Tensor sum = term(0).to(at::kDouble) + term(1).to(at::kDouble) + term(2).to(at::kDouble);
    over_gloo(GetParam(), [&](Axis axis) {
      const at::Tensor stack = term(axis.rank).to(kStandIn);
      run(sum_by_shares(axis, stack, {2, 0, 2}));
      EXPECT_LE(relative_error(stack.cpu(), sum), 4 * unit_roundoff(dtype));
    });
  }
}

TEST_P(ByCpu, CopiesAreComparedAveragedAndMadeEqual) {
  over_gloo(GetParam(), [](Axis axis) {
    const at::Tensor mean = input_of(axis.rank).to(kStandIn), largest = mean.clone(), first = mean.clone();
    EXPECT_EQ(differing({mean, at::ones({2}).to(kStandIn)}, axis), (std::vector<bool>{true, false}));
    average(mean, axis);
    max_(largest, axis);
    copy_from_first(first, axis);
    const at::Tensor all = at::stack({input_of(0), input_of(1), input_of(2)});
    EXPECT_TRUE(at::allclose(mean.cpu(), all.mean(0)));
    EXPECT_TRUE(bitwise_equal(largest.cpu(), all.amax(0)));
    EXPECT_TRUE(bitwise_equal(first.cpu(), input_of(0)));
  });
}

TEST_P(ByCpu, PiecesAreGatheredOnTheirDevice) {
  const at::Tensor whole = normal({7, 4}, 1);
  over_gloo(GetParam(), [&](Axis axis) {
    const at::Tensor found = gather_pieces(piece_of(whole.to(kStandIn), 0, axis), 0, 7, axis);
    EXPECT_EQ(found.device(), kStandIn);
    EXPECT_TRUE(bitwise_equal(found.cpu(), whole));
  });
}

INSTANTIATE_TEST_SUITE_P(Groups, ByCpu, testing::Values(Has::gloo, Has::nothing), [](const auto& info) {
  return info.param == Has::gloo ? "gloo_for_the_device" : "nothing_for_the_device";
});

// As gloo beside NCCL, and NCCL alone.
TEST(ByCpuGoes, NothingThatAnotherBackendMoves) {
  Meeting meeting(1);
  const AxisOptions alone{.real_when_alone = true};
  const at::Tensor on_cpu = at::ones({2}), on_device = on_cpu.to(kStandIn);
  const Axis of_device = axis_of(&meeting, 0, alone, kStandIn.type());
  EXPECT_FALSE(goes_by_cpu(on_device, of_device));
  EXPECT_TRUE(where_it_can_be_sent(on_device, of_device).is_same(on_device));
  EXPECT_EQ(where_it_can_be_sent(on_cpu, of_device).device(), kStandIn);

  const Axis both = axis_of(&meeting, 0, alone, kStandIn.type());
  both.line->group->setBackend(at::kCPU, c10d::ProcessGroup::BackendType::CUSTOM,
                               c10::make_intrusive<MeetingBackend>(&meeting, 0));
  for (const at::Tensor& tensor : {on_cpu, on_device}) {
    EXPECT_FALSE(goes_by_cpu(tensor, both));
    EXPECT_TRUE(where_it_can_be_sent(tensor, both).is_same(tensor));
  }
}

}  // namespace

}  // namespace torchdion::comm
