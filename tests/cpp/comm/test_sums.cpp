#include "comm/sums.h"

#include <gtest/gtest.h>

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
