#pragma once

#include "linalg/matrices.h"

namespace torchdion::linalg {

// [count, cols] FP64: the sum of squares of every column of every matrix.
at::Tensor column_square_sums(const Matrices& R);

// BF16 copies for products, [count, rows, cols]; undefined: none.
struct NormalizedCopies {
  at::Tensor Q = {}, R = {};
};

// Every column of Q ← the same column of R divided by sqrt(square_sums); where that sum is exactly zero, Q keeps its
// column, and so does the copy of Q. There is no epsilon: Dion is scale-free. `square_sums`: [count, cols] FP64, summed
// over all the rows of a column, wherever they lie; undefined: the rows of R are all there are.
void column_normalize_(const Matrices& Q, const Matrices& R, const at::Tensor& square_sums = {},
                       const NormalizedCopies& copies = {});

}  // namespace torchdion::linalg
