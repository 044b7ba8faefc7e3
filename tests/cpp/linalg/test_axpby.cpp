#include "linalg/axpby.h"

#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include "tensors.h"

namespace torchdion::linalg {

namespace {

TEST(Axpby, AddsMultiplesInEveryDtypeAndLayout) {
  for (const at::ScalarType dtype : kEveryDtype) {
    for (const at::ScalarType other : kEveryDtype) {
      const bool in_double = dtype == at::kDouble || other == at::kDouble;
      const at::Tensor factors = at::tensor({-0.5, 0.75}, in_double ? at::kDouble : at::kFloat);
      for (const bool by_columns : {false, true}) {
        const at::Tensor X0 = normal({3, 40, 300}, 1, dtype), values = normal({3, 40, 300}, 2, other);
        const at::Tensor X = by_columns ? column_major(X0).clone() : X0.clone();
        const at::Tensor unchanged = at::tensor({0, 1, 0}, at::kFloat);
        axpby_(Matrices(X), Matrices(column_major(values)), factors,
               {.frozen = {.unchanged = unchanged.const_data_ptr<float>()}});
        const at::Tensor expected = 0.75 * X0.to(at::kDouble) - 0.5 * values.to(at::kDouble);
        for (const int64_t i : {0, 2}) {
          EXPECT_LE(relative_error(X[i], expected[i]), 2 * unit_roundoff(dtype)) << dtype << " " << other;
        }
        EXPECT_TRUE(bitwise_equal(X[1].contiguous(), X0[1]));
      }
    }
  }
}

TEST(Axpby, MultipliesEachMatrixByAScaleOfItsOwn) {
  for (const at::ScalarType dtype : kEveryDtype) {
    const at::ScalarType of_factors = dtype == at::kDouble ? at::kDouble : at::kFloat;
    const at::Tensor factors = at::tensor({-0.5, 0.75}, of_factors), scales = at::tensor({2.0, 0.0, -3.0}, of_factors);
    for (const bool by_columns : {false, true}) {
      const at::Tensor X0 = normal({3, 40, 300}, 1, dtype), U = normal({3, 40, 300}, 2, dtype);
      const at::Tensor X = laid_out(X0, by_columns).clone();
      axpby_(Matrices(X), Matrices(U), factors, {}, {}, scales);
      const at::Tensor expected =
          0.75 * X0.to(at::kDouble) - 0.5 * scales.to(at::kDouble).view({3, 1, 1}) * U.to(at::kDouble);
      EXPECT_LE(relative_error(X, expected), 2 * unit_roundoff(dtype)) << dtype;
    }
  }
}

// Which row of U goes to each of three matrices' rows, none twice.
at::Tensor some_rows(int64_t rows, int64_t of_U) {
  const at::Tensor source = at::full({3, rows}, -1, at::kInt);
  for (int64_t i = 0; i < 3; ++i) {
    for (int64_t k = 0; k < of_U; ++k) source[i][(7 * k + i) % rows] = k;
  }
  return source;
}

// Row i: U's row source[i] times factor[i], zeros where there is none.
at::Tensor put_in_rows(const at::Tensor& U, const RowRule& rule, int64_t rows) {
  at::Tensor whole = at::zeros({3, rows, U.size(2)}, at::kDouble);
  for (int64_t i = 0; i < 3; ++i) {
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t source = rule.source.defined() ? rule.source[i][row].item<int64_t>() : row;
      if (source >= 0) whole[i][row] = U[i][source].to(at::kDouble);
      if (rule.factor.defined()) whole[i][row] *= rule.factor[i][row].to(at::kDouble);
    }
  }
  return whole;
}

class AxpbyOfRows : public testing::TestWithParam<std::tuple<at::ScalarType, at::ScalarType>> {};

TEST_P(AxpbyOfRows, GoToThoseOfWeightsInEveryLayout) {
  const auto [dtype, other] = GetParam();
  const auto factors_dtype = dtype == at::kDouble || other == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor factors = at::tensor({-0.5, 0.75}, factors_dtype), unchanged = at::tensor({0, 1, 0}, at::kFloat);
  for (const auto& [rows, chosen, cols] : {std::tuple{40, 9, 300}, {300, 70, 40}, {5, 1, 1}, {11, 11, 600}}) {
    for (int kind = 0; kind < 8; ++kind) {
      RowRule rule;
      if (kind & 1) rule.source = some_rows(rows, chosen);
      if (kind & 2) rule.factor = normal({3, rows}, 3, factors_dtype);
      const bool takes_rows = rule.source.defined();
      const Decay decay = kind & 4 ? Decay::cautious : Decay::all;
      if (!takes_rows && !rule.factor.defined()) continue;
      for (const bool by_columns : {false, true}) {
        SCOPED_TRACE(testing::Message() << rows << "×" << cols << ", kind " << kind << ", by columns " << by_columns);
        const at::Tensor X0 = normal({3, rows, cols}, 1, dtype),
                         U = normal({3, takes_rows ? chosen : rows, cols}, 2, other);
        const at::Tensor X = laid_out(X0, by_columns).clone(), direction = put_in_rows(U, rule, rows);
        axpby_(Matrices(X), Matrices(laid_out(U, !takes_rows)), factors,
               {decay, {.unchanged = unchanged.const_data_ptr<float>()}}, rule);
        const at::Tensor keep =
            at::where((X0.to(at::kDouble) * direction).gt(0).logical_or_(at::scalar_tensor(decay == Decay::all)),
                      at::scalar_tensor(0.75, at::kDouble), at::scalar_tensor(1.0, at::kDouble));
        const at::Tensor expected = keep * X0.to(at::kDouble) - 0.5 * direction;
        for (const int64_t i : {0, 2}) EXPECT_LE(relative_error(X[i], expected[i]), 3 * unit_roundoff(dtype));
        EXPECT_TRUE(bitwise_equal(X[1].contiguous(), X0[1]));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, AxpbyOfRows,
                         testing::Combine(testing::ValuesIn(kEveryDtype), testing::ValuesIn(kEveryDtype)));

}  // namespace

}  // namespace torchdion::linalg
