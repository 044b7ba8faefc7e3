// What a low-rank product leaves of a matrix, as a direction.
#pragma once

#include <ATen/core/Tensor.h>

#include "linalg/matrices.h"

namespace torchdion::linalg {

// 1 / σ of each matrix, [count], in the dtype of the options: σ is the mean of the smallest quarter of those columns of
// R that are not zero, and no less than `least` times the longest one. 0 where all are zero, NaN where one is NaN.
// `squares`: [count, r] FP64, the sums of squares of columns times `scale`, [count, 1, 1] or [count, 1, r] FP64
// (scale.h), or, where it is undefined, of the columns themselves.
at::Tensor residual_scales(const at::Tensor& squares, const at::Tensor& scale, double least, at::TensorOptions options);

// U, a part of L, ← the signs of what it leaves of L, 0 where that is no more than `noise` of both; and L ← L −
// feedback U where the feedback is not 0. Both are in the same order of memory, U in FP64 where anything is, else in
// FP32.
void take_signs_(const Matrices& U, const Matrices& L, double feedback, double noise);

}  // namespace torchdion::linalg
