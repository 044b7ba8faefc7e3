// Rows of matrices: their sums and factors, and lists that hold some of them.
#pragma once

#include <ATen/core/Tensor.h>

#include "linalg/matrices.h"
#include "linalg/rules/row_sum.h"
#include "linalg/step_numbers.h"

namespace torchdion::linalg {

// Σ |a| or Σ a² of every row of every matrix ([count, rows], FP64), in an order that depends on shape and strides
// alone.
at::Tensor row_sums(const Matrices& A, RowSum kind);

// M ← M + G as the rule has it (accumulate_()), and Σ |b| of the rows of the new M, as row_sums() has them but for the
// order of each.
at::Tensor accumulate_row_sums_(const Matrices& M, const Matrices& G, const GradientRule& rule);

// Row j of A ← row rows[j] of B, which has as many columns; zeros where that is −1. These rows of B decay. `rows`:
// [count, rows of A], int32, none twice for a matrix, on their device, contiguous. The rows of A are contiguous, or, as
// those of B, its columns.
void take_rows_(const Matrices& A, const Matrices& B, const at::Tensor& rows, const RowDecay& decay = {});

// The same decay of B, from which nothing is taken.
void decay_rows_(const Matrices& B, const at::Tensor& rows, const RowDecay& decay);

// The factors by which NorMuon multiplies the rows of an update (arXiv 2510.05491, Algorithm 1).
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
