#include "linalg/share_out.h"

#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <mutex>
#include <vector>

#include "tensors.h"

namespace torchdion::linalg {

namespace {

struct Shares {
  std::vector<int> visits;  // of each matrix
  std::vector<Share> shares;
  std::vector<bool> in_parallel;  // whether each of these came from one of several threads
};

Shares shares_of(int64_t count, const Need& need) {
  Shares found{std::vector<int>(count), {}, {}};
  std::mutex lock;
  share_out(at::kCPU, count, need, [&](const Share& share) {
    const std::lock_guard guard(lock);
    for (int64_t i = share.begin; i < share.end; ++i) ++found.visits[i];
    found.shares.push_back(share);
    found.in_parallel.push_back(at::in_parallel_region());
  });
  return found;
}

class ShareOut : public testing::Test {
 protected:
  void SetUp() override { threads = at::get_num_threads(); }
  void TearDown() override { at::set_num_threads(threads); }

  int threads = 1;
};

constexpr Need kSmall{1'000, 100'000}, kLarge{4'000'000, 1'000'000'000};

TEST_F(ShareOut, CoversEveryMatrixOnce) {
  for (const int with : {1, 2, 3}) {
    at::set_num_threads(with);
    for (const int64_t count : {1, 2, 3, 5, 8, 100}) {
      for (const Need& need : {kSmall, kLarge, Need{0, 0}}) {
        EXPECT_EQ(shares_of(count, need).visits, std::vector<int>(count, 1)) << count << " on " << with;
      }
    }
  }
  EXPECT_TRUE(shares_of(0, kLarge).shares.empty());
}

TEST_F(ShareOut, LeavesLargeMatricesThatAreTooFewToAllThreads) {
  if (is_cuda_emulated()) GTEST_SKIP() << "of the operations on CPUs";
  at::set_num_threads(3);
  const Shares found = shares_of(5, kLarge);
  ASSERT_EQ(found.shares.size(), 4u);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(found.shares[i].end - found.shares[i].begin, 1);
    EXPECT_TRUE(found.in_parallel[i]);
  }
  EXPECT_EQ(found.shares[3].begin, 3);
  EXPECT_EQ(found.shares[3].at_once, 2);
  EXPECT_FALSE(found.in_parallel[3]);
  EXPECT_EQ(shares_of(5, kSmall).shares.size(), 1u) << "not worth a second thread";
}

// What a caller has said to torch holds on every thread: an inference tensor may be written in that mode alone.
TEST_F(ShareOut, TakesTheModesOfTheCallerAlong) {
  at::set_num_threads(2);
  const c10::InferenceMode inference;
  const at::Tensor X = at::zeros({4, 3});
  share_out(at::kCPU, 4, kLarge, [&](const Share& share) {
    EXPECT_TRUE(c10::InferenceMode::is_enabled());
    X.narrow(0, share.begin, share.end - share.begin).add_(1);
  });
  EXPECT_TRUE(X.eq(1).all().item<bool>());
}

TEST_F(ShareOut, WorksOnWhatACacheHoldsAtATime) {
  if (is_cuda_emulated()) GTEST_SKIP() << "of the operations on CPUs";
  at::set_num_threads(1);
  EXPECT_EQ(shares_of(2'000, kSmall).shares.front().at_once, 1'048);
  EXPECT_EQ(shares_of(3, kLarge).shares.front().at_once, 1);
}

}  // namespace

}  // namespace torchdion::linalg
