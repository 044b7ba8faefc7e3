#include "linalg/rows.h"

#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <limits>

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

TEST_P(Rows, AreTakenFromAnotherListInEveryDtypeAndLayout) {
  for (const at::ScalarType target : kEveryDtype) {
    for (const auto& [count, rows, cols] : kShapesOfRows) {
      const int64_t taken = rows / 2 + 2;
      const at::Tensor B = normal({count, rows, cols}, 1, GetParam()), source = at::full({count, taken}, -1, at::kInt);
      at::Tensor expected = at::zeros({count, taken, cols}, target);
      for (int64_t i = 0; i < count; ++i) {
        for (int64_t k = 0; k < taken - 1; ++k) {
          source[i][k] = (5 * k + i) % rows;
          expected[i][k] = B[i][(5 * k + i) % rows].to(target);
        }
      }
      for (const bool by_columns : {false, true}) {
        const at::Tensor A = at::full({count, taken, cols}, std::nan(""), target);
        take_rows_(Matrices(A), Matrices(laid_out(B, by_columns)), source);
        EXPECT_TRUE(bitwise_equal(A, expected)) << target << " " << rows << "×" << cols << " " << by_columns;
      }
    }
  }
}

TEST_P(Rows, AreScaledWhereTheyAreChosen) {
  for (const auto& [count, rows, cols] : kShapesOfRows) {
    const at::Tensor before = normal({count, rows, cols}, 1, GetParam()),
                     source = at::full({count, rows}, -1, at::kInt);
    at::Tensor expected = before.clone();
    for (int64_t row = 0; row < rows; row += 3) {
      source.select(1, row).fill_(row);
      expected.select(1, row).copy_((0.75 * before.select(1, row).to(at::kDouble)).to(GetParam()));
    }
    const at::Tensor unchanged = at::zeros({count}, at::kFloat), left_out = at::zeros({1}, at::kFloat);
    if (count > 1) {
      unchanged[1] = 1;
      expected[1] = before[1];
    }
    for (const bool by_columns : {false, true}) {
      const at::Tensor A = laid_out(before, by_columns).clone();
      scale_rows_(Matrices(A), source, 0.75, left_out.const_data_ptr<float>(), unchanged.const_data_ptr<float>());
      EXPECT_LE(relative_error(A, expected), unit_roundoff(GetParam()));
      EXPECT_TRUE(
          bitwise_equal(A.index_select(1, at::arange(1, rows, 3)), before.index_select(1, at::arange(1, rows, 3))))
          << "those that are not chosen";
      left_out.fill_(1);
      const at::Tensor again = A.clone();
      scale_rows_(Matrices(A), source, 0.75, left_out.const_data_ptr<float>(), nullptr);
      EXPECT_TRUE(bitwise_equal(A, again)) << "of a step that is left out";
      left_out.fill_(0);
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
