// Numbers that a step's operations are told, for the host and for kernels: no torch header.
#pragma once

#include <cstdint>

#include "linalg/host_device.h"

namespace torchdion::linalg {

// Which matrices of a list stay as they are. Pointers are to numbers in their device's memory, or null: none stays.
struct Frozen {
  const float* left_out = nullptr;   // one number, not 0: the step is left out, and all stay
  const float* unchanged = nullptr;  // one for each matrix, not 0: it stays
  int64_t parts = 1;                 // of each matrix, which the list has instead of it

  TORCHDION_HOST_DEVICE bool all() const { return left_out && *left_out != 0; }
  TORCHDION_HOST_DEVICE bool has(int64_t i) const { return all() || (unchanged && unchanged[i / parts] != 0); }
  bool may_have_any() const { return left_out || unchanged; }
  // Of the matrices from the first on; of so many parts of each.
  Frozen from(int64_t first) const { return {left_out, unchanged ? unchanged + first : nullptr}; }
  Frozen in_parts(int64_t of_each) const { return {left_out, unchanged, of_each}; }
};

// How gradients count. Pointers are to single numbers in the memory of the gradients' device, or null.
struct GradientRule {
  double keep = 1;                 // what M is multiplied by before
  double factor = 1;               // with the sign of the option `maximize`
  const float* divisor = nullptr;  // of the factor: what a gradient scaler has multiplied by
  int64_t* zeroed = nullptr;       // entries that are not finite count as zero, and here; null: they propagate
  Frozen frozen = {};

  TORCHDION_HOST_DEVICE double total_factor() const { return divisor ? factor / *divisor : factor; }
};

// Of L = gradient · G + momentum · M.
struct LookAheadFactors {
  double gradient = 0, momentum = 1;
};

// Rows that are taken leave factor · themselves.
struct RowDecay {
  double factor = 1;
  Frozen frozen = {};
};

// v ← β₂ v + (1 − β₂) s / n of the sums s of n squares.
struct VarianceRule {
  static constexpr double kEpsilon = 1e-8;

  double beta2;
  int64_t n;
  Frozen frozen = {};
};

// η and λ of a step.
struct Rates {
  double lr, weight_decay;
};

// The factors of X = keep · X + update · P Qᵀ.
struct UpdateFactors {
  double update, keep;
};

TORCHDION_HOST_DEVICE UpdateFactors update_factors(double shape_factor, Rates rates, bool left_out) {
  if (left_out) return {0, 1};
  return {-rates.lr * shape_factor, 1 - rates.lr * rates.weight_decay};
}

}  // namespace torchdion::linalg
