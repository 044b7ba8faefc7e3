// Rows of matrices: their sums, and lists that hold some of them.
#pragma once

#include <ATen/core/Tensor.h>

#include "linalg/matrices.h"
#include "linalg/rules/row_sum.h"

namespace torchdion::linalg {

// Σ |a| or Σ a² of every row of every matrix ([count, rows], FP64), in an order that depends on shape and strides
// alone.
at::Tensor row_sums(const Matrices& A, RowSum kind);

// Row i of A, whose rows are contiguous, ← row source[i] of B, which has as many columns; zeros where that is −1.
// `source`: [count, rows of A], int32, on their device, contiguous.
void take_rows_(const Matrices& A, const Matrices& B, const at::Tensor& source);

// Rows whose number in `source` ([count, rows], int32, contiguous) is not −1 are multiplied by the factor, but for
// matrices whose number in `unchanged` is there and not 0; none where `left_out` is there and not 0.
void scale_rows_(const Matrices& A, const at::Tensor& source, double factor, const float* left_out = nullptr,
                 const float* unchanged = nullptr);

}  // namespace torchdion::linalg
