#include "linalg/column_normalize.h"

#include <gtest/gtest.h>

#include <limits>

#include "tensors.h"

namespace torchdion::linalg {

namespace {

struct NormalizeDtypes {
  at::ScalarType Q, R;
};

class ColumnNormalize : public testing::TestWithParam<NormalizeDtypes> {};

TEST_P(ColumnNormalize, DividesEveryColumnByItsNorm) {
  const auto [q_dtype, r_dtype] = GetParam();
  for (const auto& [count, n, r] : {std::tuple{1, 1, 1}, {3, 7, 1}, {2, 1, 5}, {2, 40, 6}, {4, 500, 33}, {3, 20, 64}}) {
    for (bool by_columns : {false, true}) {
      SCOPED_TRACE(testing::Message() << count << " of " << n << "×" << r << (by_columns ? ", by columns" : ""));
      at::Tensor R = normal({count, n, r}, 1, r_dtype);
      const at::Tensor exact = R.to(at::kDouble);
      if (by_columns) R = column_major(R);
      const at::Tensor Q = at::full({count, n, r}, 7.0, q_dtype);
      const at::Tensor squares = column_square_sums(Matrices(R));
      EXPECT_LE(relative_error(squares, exact.square().sum(1)), 1e-14);
      column_normalize_(Matrices(Q), Matrices(R), squares);
      const at::Tensor expected = exact / exact.square().sum(1, true).sqrt();
      const double subnormal = q_dtype == at::kHalf ? 0x1p-25 : 0;
      const at::Tensor allowed = expected.abs() * (unit_roundoff(q_dtype) + 1e-14) + subnormal;
      EXPECT_TRUE((Q.to(at::kDouble) - expected).abs().le(allowed).all().item<bool>());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Dtypes, ColumnNormalize,
    testing::Values(NormalizeDtypes{at::kDouble, at::kDouble}, NormalizeDtypes{at::kFloat, at::kFloat},
                    NormalizeDtypes{at::kBFloat16, at::kFloat}, NormalizeDtypes{at::kHalf, at::kFloat},
                    NormalizeDtypes{at::kFloat, at::kDouble}, NormalizeDtypes{at::kDouble, at::kBFloat16}),
    [](const auto& info) { return std::string(c10::toString(info.param.Q)) + "_" + c10::toString(info.param.R); });

TEST(ColumnNormalize, KeepsQsColumnWhereRsIsZero) {
  at::Tensor R = normal({2, 9, 4}, 1, at::kFloat);
  R.select(2, 1).zero_();
  R[1].select(1, 3).zero_();
  const at::Tensor before = normal({2, 9, 4}, 2, at::kFloat), Q = before.clone();
  column_normalize_(Matrices(Q), Matrices(R), column_square_sums(Matrices(R)));
  EXPECT_TRUE(bitwise_equal(Q.select(2, 1), before.select(2, 1)));
  EXPECT_TRUE(bitwise_equal(Q[1].select(1, 3), before[1].select(1, 3)));
  const at::Tensor norms = at::linalg_vector_norm(Q, 2, {1});
  EXPECT_NEAR(norms[0][3].item<double>(), 1, 1e-6);
  EXPECT_NEAR(norms[1][0].item<double>(), 1, 1e-6);
}

TEST(ColumnNormalize, HasNoScaleOfItsOwn) {
  const at::Tensor scales = at::logspace(-30, 30, 13, 10, at::kDouble);
  const at::Tensor R = (normal({20, 13}, 1) * scales).to(at::kFloat), Q = at::zeros({20, 13});
  column_normalize_(Matrices(Q), Matrices(R), column_square_sums(Matrices(R)));
  EXPECT_LE((at::linalg_vector_norm(Q, 2, {0}, false, at::kDouble) - 1).abs().max().item<double>(), 1e-6);
}

TEST(ColumnNormalize, TakesBlocksOfLargerMatrices) {
  const at::Tensor R = normal({2, 9, 20}, 1).slice(2, 3, 14), expected = R / R.square().sum(1, true).sqrt();
  for (int64_t width : {11, 15, 40}) {
    const at::Tensor whole = normal({2, 9, width}, 2), before = whole.clone(), Q = whole.slice(2, width - 11);
    column_normalize_(Matrices(Q), Matrices(R), {});
    EXPECT_LE(relative_error(Q, expected), 1e-15) << width;
    EXPECT_TRUE(at::equal(whole.slice(2, 0, width - 11), before.slice(2, 0, width - 11))) << width;
  }
}

TEST(ColumnNormalize, KeepsANaNInItsColumn) {
  at::Tensor R = normal({6, 3}, 1);
  R[2][1] = std::numeric_limits<double>::quiet_NaN();
  const at::Tensor Q = at::zeros({6, 3}, at::kDouble);
  column_normalize_(Matrices(Q), Matrices(R), column_square_sums(Matrices(R)));
  EXPECT_EQ(Q.isnan().sum().item<int64_t>(), 6);
  EXPECT_TRUE(Q.select(1, 1).isnan().all().item<bool>());
}

TEST(ColumnNormalize, SumsNothingOverNoRows) {
  EXPECT_TRUE(at::equal(column_square_sums(Matrices(at::zeros({2, 0, 3}))), at::zeros({2, 3}, at::kDouble)));
}

}  // namespace

}  // namespace torchdion::linalg
