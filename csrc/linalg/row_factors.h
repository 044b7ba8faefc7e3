// The factors by which NorMuon multiplies the rows of an update (arXiv 2510.05491, Algorithm 1).
#pragma once

#include <ATen/core/Tensor.h>

#include "linalg/matrices.h"
#include "linalg/step_numbers.h"

namespace torchdion::linalg {

struct RowFactors {
  at::Tensor factors;  // 1 / (sqrt(v) + 1e-8) of the new v; 0 of rows that the update lacks ([count, rows], FP64)
  at::Tensor norms;    // Σ s and Σ s factor² over the rows ([count, 2], FP64)
};

// v ([count, rows, 1]) ← as the rule has it of the rows that the update has. `squares`: the sums of squares of the
// update's rows ([count, rows of it], FP64). `source`: which of these each row of v is, or −1 ([count, rows], int32,
// contiguous); undefined: its own.
RowFactors row_factors_(const at::Tensor& squares, const Matrices& v, const at::Tensor& source,
                        const VarianceRule& rule);

// The factors in this dtype, multiplied by sqrt(norms₀ / norms₁) of each matrix, so that it keeps its Frobenius norm; 0
// where norms₁ is.
at::Tensor keep_norms(const RowFactors& rows, at::ScalarType dtype);

}  // namespace torchdion::linalg
