#include "linalg/noise.h"

#include <gtest/gtest.h>

#include "tensors.h"

namespace torchdion::linalg {

namespace {

// The root mean square of 3, 4 and 0 is 5 / √3.
TEST(RelativeNoise, IsThatOfTheMeanLengthOverEachButAtLeastItsOwnAndAllOfAColumnAtMost) {
  const at::Tensor lengths = at::tensor({3.0, 4.0, 0.0, 1.0, 1.0, 1e-9}, at::kDouble).view({2, 3});
  const at::Tensor noise = relative_noise(lengths, {.own = 0.25, .mean = 0.3});
  const double mean = 5 / std::sqrt(3.0);
  const at::Tensor expected = at::tensor({0.3 * mean / 3, 0.25, 1.0, 0.25, 0.25, 1.0}, at::kDouble).view({2, 3});
  EXPECT_LE((noise - expected).abs().max().item<double>(), 1e-15);
}

// Twice to four times what products of low-rank matrices show, whose entries grow less than those of others.
TEST(RoundingNoise, IsMoreThanWhatAProductShowsButNotByFar) {
  for (int64_t inner : {16, 256, 4096}) {
    const at::Tensor B = normal({300, inner}, 1, at::kFloat), Q = normal({inner, 8}, 2, at::kFloat);
    const at::Tensor exact = B.to(at::kDouble).matmul(Q.to(at::kDouble));
    const double shown = relative_error(B.matmul(Q), exact), allowed = rounding_noise(at::kFloat, inner);
    EXPECT_LE(shown, allowed) << inner;
    EXPECT_LE(allowed, 100 * shown) << inner;
  }
}

TEST(RoundingNoise, OfGivenDataIsMoreThanWhatStoringThemRounds) {
  const at::Tensor exact = normal({300, 8}, 1);
  for (at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const Precision precision = dtype == at::kFloat ? Precision::highest : Precision::medium;
    const double shown = relative_error(exact.to(dtype), exact), allowed = rounding_noise(at::kFloat, 0, precision);
    EXPECT_LE(shown, allowed) << dtype;
    EXPECT_LE(allowed, 16 * shown) << dtype;
  }
}

}  // namespace

}  // namespace torchdion::linalg
