#include "linalg/top_k.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <limits>

#include "tensors.h"

namespace torchdion::linalg {

namespace {

// rows are ascending, and slots say where each is among them.
void expect_that_both_agree(const ChosenRows& chosen) {
  for (int64_t i = 0; i < chosen.rows.size(0); ++i) {
    int64_t found = 0;
    for (int64_t row = 0; row < chosen.slots.size(1); ++row) {
      const auto slot = chosen.slots[i][row].item<int64_t>();
      if (slot < 0) continue;
      EXPECT_EQ(slot, found++);
      EXPECT_EQ(chosen.rows[i][slot].item<int64_t>(), row);
    }
    EXPECT_EQ(found, chosen.rows.size(1));
  }
}

TEST(ChooseRows, TakesThoseOfTheLargestNorms) {
  for (const int64_t rows : {1, 2, 31, 256, 1000}) {
    for (const int64_t k : {int64_t{1}, (rows + 3) / 4, rows}) {
      const at::Tensor norms = normal({5, rows}, 1, at::kDouble).abs() * 1e3;
      const ChosenRows chosen = choose_rows(norms, k);
      expect_that_both_agree(chosen);
      const at::Tensor expected = std::get<0>(std::get<1>(norms.topk(k, 1)).sort(1));
      EXPECT_TRUE(at::equal(chosen.rows.to(at::kLong), expected)) << k << " of " << rows;
    }
  }
}

// What sums in another order differ in decides nothing; nor do the scales of norms.
TEST(ChooseRows, ComparesTheFirst24Bits) {
  for (const double scale : {1e-300, 1.0, 1e300}) {
    const at::Tensor norms =
        at::tensor({3.0, 3.0 * (1 + 0x1p-40), 3.0 * (1 + 0x1p-22), 2.0, 3.0 * (1 - 0x1p-40)}, at::kDouble)
            .view({1, 5}) *
        scale;
    const ChosenRows chosen = choose_rows(norms, 3);
    expect_that_both_agree(chosen);
    EXPECT_TRUE(at::equal(chosen.rows, at::tensor({0, 1, 2}, at::kInt).view({1, 3}))) << scale;
  }
}

TEST(ChooseRows, TakesNaNBeforeInfinityAndOfEqualOnesTheFirst) {
  const double infinity = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  const at::Tensor norms = at::tensor({1.0, infinity, 0.0, nan, 1.0, 1.0, infinity, 0.0}, at::kDouble).view({1, 8});
  const auto rows = [&](int64_t k) { return choose_rows(norms, k).rows; };
  EXPECT_TRUE(at::equal(rows(1), at::tensor({3}, at::kInt).view({1, 1})));
  EXPECT_TRUE(at::equal(rows(2), at::tensor({1, 3}, at::kInt).view({1, 2})));
  EXPECT_TRUE(at::equal(rows(5), at::tensor({0, 1, 3, 4, 6}, at::kInt).view({1, 5})));
  EXPECT_TRUE(at::equal(choose_rows(at::ones({2, 9}, at::kDouble), 4).rows, at::arange(4, at::kInt).expand({2, 4})));
}

}  // namespace

}  // namespace torchdion::linalg
