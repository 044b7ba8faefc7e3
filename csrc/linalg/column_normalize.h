#pragma once

#include "linalg/matrices.h"

namespace torchdion::linalg {

// [count, cols] FP64: the sum of squares of every column of every matrix.
at::Tensor column_square_sums(const Matrices& R);

// Operands of products, [count, rows, cols]; undefined: nothing is written.
struct NormalizedOutputs {
  at::Tensor update = {};     // Q − s R, in BF16 or the dtype of R
  at::Tensor copy_of_R = {};  // in BF16
  at::Tensor scales = {};     // s of each matrix, [count], FP64 where R is, else FP32; undefined: 0
};

// Every column of Q ← the same column of R divided by sqrt(square_sums); where that sum is exactly zero, Q keeps its
// column, and that of `update` is zero. There is no epsilon: Dion is scale-free. `square_sums`: [count, cols] FP64,
// summed over all the rows of a column, wherever they lie; undefined: the rows of R are all there are.
void column_normalize_(const Matrices& Q, const Matrices& R, const at::Tensor& square_sums = {},
                       const NormalizedOutputs& outputs = {});

}  // namespace torchdion::linalg
