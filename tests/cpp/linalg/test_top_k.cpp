#include "linalg/top_k.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tensors.h"

namespace torchdion::linalg {

namespace {

at::Tensor chosen_of(const at::Tensor& entries, int64_t k) {
  at::Tensor chosen = at::full({entries.size(0), 2, k}, -1, entries.options());
  top_k(chosen, entries);
  return chosen;
}

class TopK : public testing::TestWithParam<at::ScalarType> {};

TEST_P(TopK, AreTheFirstOfAStableSortByMagnitude) {
  for (const auto& [size, k] : {std::pair(1, 1), {7, 3}, {64, 64}, {300, 1}, {4096, 32}, {1000, 999}}) {
    at::Tensor entries = normal({5, size}, 3).to(GetParam());
    entries.narrow(0, 1, 2).mul_(4).round_();  // with many equal magnitudes, and zeros
    const at::Tensor order = std::get<1>(entries.abs().sort(/*stable=*/true, /*dim=*/1, /*descending=*/true));
    const at::Tensor places = std::get<0>(order.narrow(1, 0, k).sort(1));
    const at::Tensor chosen = chosen_of(entries, k);
    EXPECT_TRUE(at::equal(chosen.select(1, 0), places.to(GetParam()))) << size << " " << k;
    EXPECT_TRUE(at::equal(chosen.select(1, 1), entries.gather(1, places))) << size << " " << k;
  }
}

TEST_P(TopK, CountNaNAsTheLargestAndThenInfinity) {
  const double inf = std::numeric_limits<double>::infinity();
  const at::Tensor entries = at::tensor({1.0, -inf, 3.0, std::nan(""), -7.0}, at::kDouble).to(GetParam()).view({1, 5});
  const at::Tensor chosen = chosen_of(entries, 3);
  EXPECT_TRUE(at::equal(chosen[0][0], at::tensor({1.0, 3.0, 4.0}, at::kDouble).to(GetParam())));
  EXPECT_EQ(chosen[0][1][0].item<double>(), -inf);
  EXPECT_TRUE(std::isnan(chosen[0][1][1].item<double>()));
  EXPECT_EQ(chosen[0][1][2].item<double>(), -7);
}

TEST_P(TopK, OfNoRowsAreNone) { EXPECT_EQ(chosen_of(at::empty({0, 9}, GetParam()), 4).numel(), 0); }

INSTANTIATE_TEST_SUITE_P(Dtypes, TopK, testing::Values(at::kFloat, at::kDouble));

}  // namespace

}  // namespace torchdion::linalg
