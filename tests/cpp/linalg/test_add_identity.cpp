#include "linalg/newton_schulz.h"

#include <ATen/ops/eye.h>
#include <gtest/gtest.h>

#include <limits>

#include "tensors.h"

namespace torchdion::linalg {

namespace {

TEST(AddIdentity, ShiftsDiagonalsAndMultipliesByPowersOfFactors) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    for (const int64_t p : {1, 3, 8, 33, 64, 300}) {
      const at::Tensor A = normal({3, p, p}, 1, dtype), exact = A.to(at::kDouble).clone();
      const at::Tensor factors = normal({3}, 2, dtype == at::kDouble ? at::kDouble : at::kFloat);
      const at::Tensor f = factors.to(at::kDouble).view({-1, 1, 1}), shifted = exact + 3.5 * at::eye(p, at::kDouble);
      const double bound = 8 * unit_roundoff(dtype);
      const at::Tensor B = at::full_like(A, std::numeric_limits<double>::quiet_NaN());
      add_identity_(B, A, 3.5);
      EXPECT_LE(relative_error(B, shifted), bound) << dtype << " " << p;
      add_identity_(B, A, 3.5, factors);
      EXPECT_LE(relative_error(B, f * shifted), bound) << dtype << " " << p;
      EXPECT_TRUE(bitwise_equal(A, exact.to(dtype)));
      add_identity_(A, A, 0, factors, 2);
      EXPECT_LE(relative_error(A, f * f * exact), bound) << dtype << " " << p;
    }
  }
}

TEST(AddIdentity, LetsNaNThroughAndZerosOutMatrices) {
  const at::Tensor A = normal({2, 5, 5}, 1, at::kFloat), factors = at::zeros({2});
  A[1][2][3] = std::numeric_limits<float>::quiet_NaN();
  add_identity_(A, A, 1, factors);
  EXPECT_EQ(A[0].abs().max().item<double>(), 0);
  EXPECT_TRUE(A[1][2][3].isnan().item<bool>());
}

}  // namespace

}  // namespace torchdion::linalg
