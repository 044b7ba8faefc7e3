// Numbers that a step's operations are told, for the host and for kernels: no torch header.
#pragma once

#include <cstdint>

#include "linalg/host_device.h"

namespace torchdion::linalg {

// How gradients count. Pointers are to single numbers in the memory of the gradients' device, or null.
struct GradientRule {
  double keep = 1;  // what M is multiplied by before
  double factor = 1;
  const float* divisor = nullptr;    // of the factor: what a gradient scaler has multiplied by
  const float* left_out = nullptr;   // where it is not 0, nothing is written
  int64_t* zeroed = nullptr;         // entries that are not finite count as zero, and here; null: they propagate
  const float* unchanged = nullptr;  // one for each matrix: where it is not 0, M stays as it is

  TORCHDION_HOST_DEVICE double total_factor() const { return divisor ? factor / *divisor : factor; }
  TORCHDION_HOST_DEVICE bool leaves_out() const { return left_out && *left_out != 0; }
  TORCHDION_HOST_DEVICE bool keeps_all(int64_t matrix) const { return unchanged && unchanged[matrix] != 0; }
};

// The factors of X = keep · X + update · P Qᵀ.
struct UpdateFactors {
  double update, keep;
};

TORCHDION_HOST_DEVICE UpdateFactors update_factors(double shape_factor, double lr, double weight_decay, bool left_out) {
  if (left_out) return {0, 1};
  return {-lr * shape_factor, 1 - lr * weight_decay};
}

}  // namespace torchdion::linalg
