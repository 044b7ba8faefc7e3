// The rest of a matrix that a low-rank product leaves, as a direction.
#pragma once

#include <ATen/core/Tensor.h>

#include "linalg/matrices.h"
#include "linalg/rules/decay.h"

namespace torchdion::linalg {

// 1 / σ of each matrix, [count], in the dtype of the options: σ is the mean of the smallest quarter of those columns of
// R that are not zero, and no less than `least` times the longest one. 0 where all are zero, NaN where one is NaN.
// `squares`: [count, r] FP64, the sums of squares of columns.
at::Tensor residual_scales(const at::Tensor& squares, double least, at::TensorOptions options);

// What L − P Rᵀ may be by rounding alone: such entries have no sign. At i, j that is `of_entries` of |L| + |P Rᵀ| and
// `of_factors` of the length of row i of P times that of row j of R.
struct SignFloor {
  double of_entries = 0, of_factors = 0;
  at::Tensor left = {}, right = {};  // [count, rows], [count, cols], FP64: the squares of these lengths; or undefined

  SignFloor t() const { return {of_entries, of_factors, right, left}; }
};

// U, a part of L, ← the signs of what it leaves of L; and L ← L − feedback U where the feedback is not 0. Both are in
// the same order of memory, U in FP64 where anything is, else in FP32.
void take_signs_(const Matrices& U, const Matrices& L, double feedback, const SignFloor& floor);

// X ← keep X + update (P₂ Vᵀ + weight · sign(L − P₁ Rᵀ)) as the rule has it, and M ← M − feedback P₁ Rᵀ.
struct SignMove {
  Matrices X, M, L, P1, R, P2, V;  // X, M and L: rows×cols; P: rows×r; R and V: cols×r
  at::Tensor factors;              // device_factors()
  DirectionRule rule = {};
  double weight = 1, feedback = 0;
  SignFloor floor = {};
};

// X ← keep X + update (P Uᵀ + scale · L) as the rule has it.
struct ScaledMove {
  Matrices X, L, P, U;  // X and L: rows×cols; P: rows×r; U: cols×r
  at::Tensor factors;   // device_factors()
  at::Tensor scales;    // [count], in the dtype of the factors
  DirectionRule rule = {};
};

// In one pass; false, and nothing is done, where the device has none for matrices as these. Products of FP32 factors
// read what TF32 has of them.
bool move_by_signs_(const SignMove& move);
bool move_by_scaled_(const ScaledMove& move);

}  // namespace torchdion::linalg
