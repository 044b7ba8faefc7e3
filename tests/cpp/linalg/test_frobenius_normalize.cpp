#include "linalg/frobenius_normalize.h"

#include <gtest/gtest.h>

#include <limits>

#include "tensors.h"

namespace torchdion::linalg {

namespace {

TEST(FrobeniusNormalize, GivesEveryMatrixTheSameNormInEveryDtype) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const auto& [m, n] : {std::pair(1, 1), {3, 7}, {1, 40}, {40, 1}, {130, 300}}) {
      at::Tensor X = normal({3, m, n}, 1, dtype);
      X[1] *= 100;
      const at::Tensor before = X.to(at::kDouble);
      frobenius_normalize_(X, 1.02);
      for (int64_t i = 0; i < 3; ++i) {
        const at::Tensor expected = before[i] / (1.02 * before[i].norm());
        EXPECT_LE(relative_error(X[i], expected), 16 * unit_roundoff(dtype)) << dtype << " " << m << "×" << n;
      }
    }
  }
}

TEST(FrobeniusNormalize, LeavesZerosAndHoldsScalesThatFp32DoesNotSquare) {
  at::Tensor X = normal({4, 5, 6}, 1, at::kFloat);
  X[0].zero_();
  X[1] *= 1e30;
  X[2] *= 1e-30;
  X[3][2][2] = std::numeric_limits<float>::quiet_NaN();
  frobenius_normalize_(X, 1);
  EXPECT_EQ(X[0].abs().max().item<double>(), 0);
  EXPECT_NEAR(X[1].norm().item<double>(), 1, 1e-6);
  EXPECT_NEAR(X[2].norm().item<double>(), 1, 1e-6);
  EXPECT_TRUE(X[3].isnan().all().item<bool>());
}

}  // namespace

}  // namespace torchdion::linalg
