#include "comm/sums.h"

#include <gtest/gtest.h>

#include "comm/ranks_as_threads.h"
#include "comm/scheduler.h"
#include "tensors.h"

namespace torchdion::comm {

namespace {

TEST(ShareOf, DealsOutOneEntryAfterAnotherOverManyStacks) {
  for (const int size : {1, 2, 3, 8}) {
    std::vector<int64_t> dealt(size);
    int64_t before = 0;
    for (const int64_t count : {1, 1, 5, 0, 8, 3, 7, 1}) {
      for (int rank = 0; rank < size; ++rank) dealt[rank] += share_of(count, rank, size, before);
      before += count;
      for (int rank = 0; rank < size; ++rank) {
        EXPECT_EQ(dealt[rank], before / size + (rank < before % size)) << rank << " of " << size << " at " << before;
      }
    }
  }
}

Task<> deal_out_and_gather(Axis axis, at::Tensor stack, int64_t first, at::Tensor* sum) {
  const at::Tensor share = co_await sum_shares(stack, axis, Order::fixed, first);
  EXPECT_EQ(share.size(0), share_of(stack.size(0), axis.rank, axis.size, first));
  *sum = at::zeros_like(stack);
  co_await gather_shares(*sum, share, axis, first);
}

TEST(Shares, AreSumsThatGatherWhoeverIsFirst) {
  for (int64_t first = 0; first < 4; ++first) {
    Meeting meeting(3);
    on_every_rank(&meeting, [&](Axis axis) {
      at::Tensor sum;
      run(deal_out_and_gather(axis, normal({4, 2, 3}, 1 + axis.rank), first, &sum));
      EXPECT_TRUE(at::allclose(sum, normal({4, 2, 3}, 1) + normal({4, 2, 3}, 2) + normal({4, 2, 3}, 3)));
    });
  }
}

}  // namespace

}  // namespace torchdion::comm
