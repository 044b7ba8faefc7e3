#pragma once

#include <cstdint>

namespace torchdion::linalg {

// v ← β₂ v + (1 − β₂) s / n of the sums s of n squares, but for matrices whose number in `unchanged` is there and not
// 0, and nowhere where `left_out` is there and not 0.
struct VarianceRule {
  static constexpr double kEpsilon = 1e-8;

  double beta2;
  int64_t n;
  const float* left_out = nullptr;
  const float* unchanged = nullptr;
};

}  // namespace torchdion::linalg
