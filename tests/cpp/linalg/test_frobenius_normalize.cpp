#include "linalg/newton_schulz.h"

#include <gtest/gtest.h>

#include <limits>

#include "linalg/accumulate.h"
#include "tensors.h"

namespace torchdion::linalg {

namespace {

// X as it is after the factors that are left for it, if there are any.
at::Tensor normalized(const at::Tensor& X, double slack, const at::Tensor& squares = {}) {
  const at::Tensor factors = frobenius_normalize_(X, slack, squares);
  return factors.defined() ? X.to(factors.scalar_type()) * factors.view({-1, 1, 1}) : X;
}

TEST(FrobeniusNormalize, GivesEveryMatrixTheSameNormInEveryDtypeAndLayout) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const auto& [m, n] : {std::pair(1, 1), {3, 7}, {1, 40}, {40, 1}, {130, 300}}) {
      for (const bool by_columns : {false, true}) {
        at::Tensor X = laid_out(normal({3, m, n}, 1, dtype), by_columns);
        X[1] *= 100;
        const at::Tensor before = X.to(at::kDouble), after = normalized(X, 1.02);
        for (int64_t i = 0; i < 3; ++i) {
          const at::Tensor expected = before[i] / (1.02 * before[i].norm());
          EXPECT_LE(relative_error(after[i], expected), 16 * unit_roundoff(dtype)) << dtype << " " << m << "×" << n;
        }
      }
    }
  }
}

TEST(FrobeniusNormalize, LeavesZerosAndHoldsScalesThatFp32DoesNotSquare) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    at::Tensor X = normal({6, 5, 60}, 1, at::kFloat);
    X[0].zero_();
    X[1] *= 1e30;
    X[2] *= 1e-30;
    X[3][2][2] = std::numeric_limits<float>::quiet_NaN();
    X[4] *= 1e37;
    X[5] *= 1e-37;
    const at::Tensor before = X.to(dtype), X_in_dtype = before.clone();
    const at::Tensor factors = frobenius_normalize_(X_in_dtype, 1);
    const at::Tensor after = factors.defined() ? X_in_dtype.to(at::kFloat) * factors.view({-1, 1, 1}) : X_in_dtype;
    EXPECT_EQ(after[0].abs().max().item<double>(), 0);
    EXPECT_TRUE(after[3].isnan().all().item<bool>());
    for (const int64_t i : {1, 2, 4, 5}) {
      EXPECT_NEAR(after[i].to(at::kDouble).norm().item<double>(), 1, 4 * unit_roundoff(dtype)) << i;
      if (!factors.defined()) continue;
      // What products square is far from the ends of FP32, and a power of two away from what there was.
      const double norm = X_in_dtype[i].to(at::kDouble).norm().item<double>();
      EXPECT_TRUE(norm > 0.5 && norm < 4) << norm;
      const double ratio = (X_in_dtype[i][1][1].to(at::kDouble) / before[i][1][1].to(at::kDouble)).item<double>();
      EXPECT_EQ(std::exp2(std::round(std::log2(ratio))), ratio) << i;
    }
  }
}

// A look-ahead's own sums are those that are made of it, up to the order of FP64 sums.
TEST(FrobeniusNormalize, TakesTheSquaresThatALookAheadHasSummed) {
  for (const auto& [m, n] : {std::pair(1, 3), {70, 33}, {90, 1000}}) {
    for (const bool by_columns : {false, true}) {
      const at::Tensor M = normal({3, m, n}, 1, at::kFloat), G = normal({3, m, n}, 2, at::kFloat);
      const at::Tensor L = at::empty({3, m, n}, at::kBFloat16);
      const at::Tensor squares = look_ahead_(Matrices(L), Matrices(laid_out(M, by_columns).clone()), Matrices(G),
                                             {.keep = 0.9}, {1, 0.9}, /*sums_squares=*/true);
      const at::Tensor given = L.clone(), found = L.clone();
      if (squares.defined()) {
        EXPECT_LE(relative_error(squares.sum(1), L.to(at::kDouble).square().sum({1, 2})), 1e-14);
      }
      EXPECT_LE(relative_error(normalized(given, 1.02, squares), normalized(found, 1.02)), 1e-7);
    }
  }
}

}  // namespace

}  // namespace torchdion::linalg
