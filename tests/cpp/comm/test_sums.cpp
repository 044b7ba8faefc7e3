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
  EXPECT_EQ(share.size(0), shares[axis.rank]);
  *sum = at::zeros_like(stack);
  co_await gather_shares(*sum, share, axis, shares);
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

}  // namespace

}  // namespace torchdion::comm
