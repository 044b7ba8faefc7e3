#include "comm/sums.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>
#include <torchdion/process_group.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <thread>

#include "comm/collectives.h"
#include "comm/ranks_as_threads.h"
#include "comm/scheduler.h"
#include "tensors.h"

namespace torchdion::comm {

namespace {

TEST(EvenShares, DifferByOneAtMost) {
  EXPECT_EQ(even_shares(7, 3), (Shares{3, 2, 2}));
  EXPECT_EQ(even_shares(2, 4), (Shares{1, 1, 0, 0}));
  EXPECT_EQ(even_shares(0, 2), (Shares{0, 0}));
  EXPECT_EQ(even_shares(5, 1), (Shares{5}));
}

Task<> deal_out_and_gather(Axis axis, at::Tensor stack, Shares shares, at::Tensor* sum) {
  const at::Tensor share = co_await sum_shares(stack, axis, Order::fixed, shares);
  const Piece own = own_share(axis, shares);
  EXPECT_TRUE(share.is_alias_of(stack) && share.sizes() == stack.narrow(0, own.begin, own.size).sizes());
  *sum = at::zeros_like(stack);
  co_await gather_shares(*sum, share, axis, shares);
  co_await gather_shares(stack, share, axis, shares);  // where it lies
  EXPECT_TRUE(bitwise_equal(stack, *sum));
}

Task<> exchanged(Axis axis, at::Tensor received, at::Tensor sent, std::vector<int64_t> from, std::vector<int64_t> to) {
  co_await all_to_all(received, sent, from, to, axis);
}

TEST(SharesOfAStack, AreSumsThatGatherHoweverManyEachRankHas) {
  for (const Shares& shares : {Shares{2, 1, 1}, Shares{0, 4, 0}, Shares{1, 0, 3}}) {
    Meeting meeting(3);
    on_every_rank(&meeting, [&](Axis axis) {
      at::Tensor sum;
      run(deal_out_and_gather(axis, normal({4, 2, 3}, 1 + axis.rank), shares, &sum));
      EXPECT_TRUE(at::allclose(sum, normal({4, 2, 3}, 1) + normal({4, 2, 3}, 2) + normal({4, 2, 3}, 3)));
    });
  }
}

// Which travel as messages: a rank's own share is not among them.
TEST(SharesOfAStack, AreTheSameOverGloo) {
  const Shares shares{2, 0, 5};
  const at::Tensor expected = normal({7, 3, 4}, 1) + normal({7, 3, 4}, 2) + normal({7, 3, 4}, 3);
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&, rank] {
      const GlooOptions options{.timeout = std::chrono::seconds(20), .hostname = "127.0.0.1"};
      const Axis axis(gloo_group(store, rank, 3, options), {.name = "messages"});
      at::Tensor sum;
      run(deal_out_and_gather(axis, normal({7, 3, 4}, 1 + rank), shares, &sum));
      EXPECT_TRUE(bitwise_equal(sum, expected));

      // Rank r sends c + 1 elements to each rank c, its own number in all of them.
      const at::Tensor sent = at::full({6}, rank, at::kFloat), received = at::empty({3 * (rank + 1)}, at::kFloat);
      run(exchanged(axis, received, sent, std::vector<int64_t>(3, rank + 1), {1, 2, 3}));
      EXPECT_TRUE(at::equal(received, at::arange(3, at::kFloat).repeat_interleave(rank + 1)));
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

class SharesOf : public testing::TestWithParam<at::ScalarType> {};

TEST_P(SharesOf, AreAddedInTheOrderOfTheRanksAndRoundedOnce) {
  const Shares shares{2, 4, 1};
  const auto given = [](int rank) {
    at::Tensor stack = normal({7, 33, 41}, 1 + rank, GetParam());
    stack.select(1, 0).fill_(-0.);  // whose sum has their sign
    return stack;
  };
  const auto wide = [](const at::Tensor& term) {
    return at::isReducedFloatingType(GetParam()) ? term.to(at::kFloat) : term;
  };
  const at::Tensor expected = (wide(given(0)) + wide(given(1)) + wide(given(2))).to(GetParam());
  Meeting meeting(3);
  on_every_rank(&meeting, [&](Axis axis) {
    at::Tensor sum;
    run(deal_out_and_gather(axis, given(axis.rank), shares, &sum));
    EXPECT_TRUE(bitwise_equal(sum, expected));
  });
}

INSTANTIATE_TEST_SUITE_P(Dtypes, SharesOf, testing::Values(at::kDouble, at::kFloat, at::kBFloat16, at::kHalf),
                         [](const auto& info) { return c10::toString(info.param); });

}  // namespace

}  // namespace torchdion::comm
