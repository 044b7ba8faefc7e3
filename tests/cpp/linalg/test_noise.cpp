#include "linalg/noise.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tensors.h"

namespace torchdion::linalg {

namespace {

// The root mean square of 3, 4 and 0 is 5 / √3.
TEST(RelativeNoise, IsThatOfTheMeanLengthOverEachButAtLeastItsOwn) {
  const at::Tensor lengths = at::tensor({3.0, 4.0, 0.0, 1.0, 1.0, 1e-9}, at::kDouble).view({2, 3});
  const at::Tensor noise = relative_noise(lengths, {.own = 0.25, .mean = 0.3});
  const double mean = 5 / std::sqrt(3.0);
  const at::Tensor expected = at::tensor({0.3 * mean / 3, 0.25, kLargestNoise, 0.25, 0.25, kLargestNoise}, at::kDouble);
  EXPECT_LE((noise - expected.view({2, 3})).abs().max().item<double>(), 1e-15);
}

// The root of 1² of the product and 300 · 0.1² of the steps is 2. 257 to 511 steps count as 512.
TEST(RelativeNoise, GrowsAsIndependentRoundingsOfEachStepDo) {
  const at::Tensor lengths = at::ones({1, 4}, at::kDouble);
  const float before = 256;
  const double rounding = std::sqrt(3.0 / 512);
  for (const Noise& noise :
       {Noise{.mean = 1, .momentum = rounding, .steps = 512}, Noise{.mean = 1, .momentum = rounding, .steps = 300},
        Noise{.mean = 1, .momentum = rounding, .steps_before = &before},
        Noise{.mean = 1, .momentum = 0.1, .most_steps = 300, .steps = 512}}) {
    EXPECT_TRUE(at::allclose(relative_noise(lengths, noise), at::full({1, 4}, 2.0, at::kDouble)));
  }
}

TEST(CountedSteps, AreTheNextPowerOfTwo) {
  const std::vector<double> steps{0, 1, 2, 3, 4, 5, 256, 257, 0x1p+24 - 1, 0x1p+24};
  const std::vector<double> counted{0, 1, 2, 4, 4, 8, 256, 512, 0x1p+24, 0x1p+24};
  for (std::size_t i = 0; i < steps.size(); ++i) EXPECT_EQ(counted_steps(steps[i]), counted[i]) << steps[i];
}

TEST(NoiseOfAStep, IsThatOfItsProductAfterOneStepAndOfTheMomentumAfterMany) {
  for (at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    const double epsilon = unit_roundoff(dtype);
    const auto mean_at = [&](int64_t steps) {
      const Noise noise = noise_of_step(dtype, 96, Precision::highest, steps);
      // Columns are to be longer by a factor of 2, and in FP64 by 2³⁰ than the noise of the product alone.
      const double of_momentum = noise.momentum * noise.margin / 2;
      return mean_after(noise.mean, of_momentum, static_cast<double>(steps), noise.most_steps) / epsilon;
    };
    EXPECT_NEAR(mean_at(1), 10.6, 0.1);
    EXPECT_NEAR(mean_at(200), 28.4, 0.1);
    EXPECT_NEAR(mean_at(100'000), 598, 1);
  }
}

// Noise of length 1 in each of the columns, of which the first are large beside it: 100 draws.
TEST(NoiseLeft, IsWhatOrthogonalizationLeavesOfNoise) {
  constexpr int64_t rows = 40, draws = 100;
  for (int64_t live : {0, 1, 20, 36, 39}) {
    const at::Tensor noise = normal({draws, rows, 1}, 2) / std::sqrt(static_cast<double>(rows));
    const at::Tensor Q = orthonormal(rows, std::max<int64_t>(live, 1), 3).slice(1, 0, live);
    const at::Tensor lengths = at::linalg_vector_norm(noise - Q.matmul(Q.mT().matmul(noise)), 2, {1}).view({-1});
    const NoiseLeft<double> left = noise_left_of(rows, live);
    EXPECT_NEAR(lengths.square().mean().sqrt().item<double>() / left.rms, 1, 0.2) << live;
    EXPECT_LE(lengths.max().item<double>(), 1.3 * left.longest) << live;
    EXPECT_LE(lengths.gt(left.longest).sum().item<int64_t>(), 6) << live;
  }
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
