#include "linalg/rows.h"

#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <limits>

#include "linalg/accumulate.h"
#include "tensors.h"

namespace torchdion::linalg {

namespace {

constexpr std::tuple<int64_t, int64_t, int64_t> kShapesOfRows[] = {{1, 1, 1},   {3, 1, 90},   {2, 90, 1},
                                                                   {2, 33, 17}, {1, 40, 900}, {3, 300, 70}};

class Rows : public testing::TestWithParam<at::ScalarType> {};

TEST_P(Rows, AreSummedInFP64InEveryLayout) {
  for (const auto& [count, rows, cols] : kShapesOfRows) {
    const at::Tensor A = normal({count, rows, cols}, 1, GetParam()), exact = A.to(at::kDouble);
    for (const bool by_columns : {false, true}) {
      const at::Tensor lying = laid_out(A, by_columns);
      const Matrices matrices(lying);
      const at::Tensor magnitudes = row_sums(matrices, RowSum::magnitudes),
                       squares = row_sums(matrices, RowSum::squares);
      EXPECT_EQ(magnitudes.sizes(), (at::IntArrayRef{count, rows}));
      EXPECT_LE(relative_error(magnitudes, exact.abs().sum(2)), 4e-15);
      EXPECT_LE(relative_error(squares, exact.square().sum(2)), 4e-15);
    }
  }
}

TEST_P(Rows, HaveTheSameSumsOnAnyNumberOfThreads) {
  const int threads = at::get_num_threads();
  for (const bool by_columns : {false, true}) {
    const at::Tensor A = laid_out(normal({3, 257, 301}, 1, GetParam()), by_columns);
    const at::Tensor of_all = row_sums(Matrices(A), RowSum::magnitudes);
    at::set_num_threads(1);
    const at::Tensor of_one = row_sums(Matrices(A), RowSum::magnitudes);
    at::set_num_threads(threads);
    EXPECT_TRUE(bitwise_equal(of_all, of_one));
  }
}

TEST_P(Rows, KeepNaNAndInfinity) {
  at::Tensor A = normal({1, 4, 40}, 1, GetParam());
  A[0][1][3] = std::nan("");
  A[0][2][39] = -std::numeric_limits<double>::infinity();
  for (const bool by_columns : {false, true}) {
    const at::Tensor sums = row_sums(Matrices(laid_out(A, by_columns)), RowSum::magnitudes)[0];
    EXPECT_TRUE(sums[1].isnan().item<bool>());
    EXPECT_EQ(sums[2].item<double>(), std::numeric_limits<double>::infinity());
    EXPECT_TRUE(sums[0].isfinite().item<bool>());
    EXPECT_TRUE(sums[3].isfinite().item<bool>());
  }
}

// Some rows of each of `count` matrices, none twice, in no order; −1 where `many` are more than there are, and once
// more.
at::Tensor some_of(int64_t count, int64_t rows, int64_t many) {
  const at::Tensor numbers = at::full({count, many}, -1, at::kInt);
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t k = 0; k < std::min(rows, many - 1); ++k) numbers[i][k] = rows - 1 - k;
  }
  return numbers;
}

TEST_P(Rows, AreTakenFromAnotherListInEveryDtypeAndLayout) {
  for (const at::ScalarType target : kEveryDtype) {
    for (const auto& [count, rows, cols] : kShapesOfRows) {
      const int64_t taken = rows / 2 + 2;
      const at::Tensor B = normal({count, rows, cols}, 1, GetParam()), numbers = some_of(count, rows, taken);
      const at::Tensor unchanged = at::zeros({count}, at::kFloat), left_out = at::zeros({1}, at::kFloat);
      if (count > 1) unchanged[1] = 1;
      at::Tensor expected = at::zeros({count, taken, cols}, target), decayed = B.clone();
      for (int64_t i = 0; i < count; ++i) {
        for (int64_t k = 0; k < taken; ++k) {
          const auto row = numbers[i][k].item<int64_t>();
          if (row < 0) continue;
          expected[i][k] = B[i][row].to(target);
          if (i != 1) decayed[i][row] = (0.75 * B[i][row].to(at::kDouble)).to(GetParam());
        }
      }
      for (int layout = 0; layout < 3; ++layout) {  // A's columns are contiguous where B's are, or its rows
        SCOPED_TRACE(testing::Message() << target << " " << rows << "×" << cols << " " << layout);
        const at::Tensor A = laid_out(at::full({count, taken, cols}, std::nan(""), target), layout == 2);
        const at::Tensor from = laid_out(B, layout > 0).clone();
        take_rows_(Matrices(A), Matrices(from), numbers);
        EXPECT_TRUE(bitwise_equal(A, expected));
        EXPECT_TRUE(bitwise_equal(from, B));
        const RowDecay decay{0.75, {left_out.const_data_ptr<float>(), unchanged.const_data_ptr<float>()}};
        A.fill_(std::nan(""));
        take_rows_(Matrices(A), Matrices(from), numbers, decay);
        EXPECT_TRUE(bitwise_equal(A, expected)) << "as they were before";
        EXPECT_LE(relative_error(from, decayed), unit_roundoff(GetParam()));
        const at::Tensor alone = laid_out(B, layout > 0).clone();
        decay_rows_(Matrices(alone), numbers, decay);
        EXPECT_TRUE(bitwise_equal(alone, from));
        left_out.fill_(1);
        decay_rows_(Matrices(alone), numbers, decay);
        EXPECT_TRUE(bitwise_equal(alone, from)) << "of a step that is left out";
        left_out.fill_(0);
      }
    }
  }
}

// The bits of accumulate_(), and the sums of what that makes.
TEST_P(Rows, AreSummedAsTheyAreAccumulated) {
  for (const at::ScalarType of_G : kEveryDtype) {
    for (const auto& [count, rows, cols] : kShapesOfRows) {
      at::Tensor before = normal({count, rows, cols}, 1, GetParam()), G = normal({count, rows, cols}, 2, of_G);
      G[0][0][0] = std::nan("");
      const at::Tensor unchanged = at::zeros({count}, at::kFloat), counters = at::zeros({2}, at::kLong);
      if (count > 1) unchanged[1] = 1;
      auto* zeroed = counters.mutable_data_ptr<int64_t>();
      GradientRule rule{.keep = 0.9, .factor = -2, .zeroed = zeroed};
      rule.frozen.unchanged = unchanged.const_data_ptr<float>();
      for (int layout = 0; layout < 4; ++layout) {
        SCOPED_TRACE(testing::Message() << of_G << " " << rows << "×" << cols << " " << layout);
        const at::Tensor M = laid_out(before, layout & 1).clone(), expected = M.clone();
        const at::Tensor gradient = laid_out(G, layout & 2);
        rule.zeroed = zeroed;
        const at::Tensor sums = accumulate_row_sums_(Matrices(M), Matrices(gradient), rule);
        rule.zeroed = zeroed + 1;
        accumulate_(Matrices(expected), Matrices(gradient), rule);
        EXPECT_TRUE(bitwise_equal(M, expected));
        EXPECT_LE(relative_error(sums, M.to(at::kDouble).abs().sum(2)), 4e-15);
        EXPECT_EQ(zeroed[0], zeroed[1]);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, Rows, testing::ValuesIn(kEveryDtype));

TEST(RowsOfNothing, AreZero) {
  EXPECT_TRUE(at::equal(row_sums(Matrices(at::empty({2, 3, 0})), RowSum::squares), at::zeros({2, 3}, at::kDouble)));
  EXPECT_EQ(row_sums(Matrices(at::empty({2, 0, 5})), RowSum::squares).sizes(), (at::IntArrayRef{2, 0}));
}

}  // namespace

}  // namespace torchdion::linalg
