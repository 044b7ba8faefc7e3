// FP32 numbers rounded to what products of BF16 read.
#pragma once

#include "linalg/matrices.h"

namespace torchdion::linalg::cpu {

// Each entry of `rows` contiguous rows becomes the nearest BF16. A finite number beyond its range becomes its largest;
// NaN and infinity stay what they are. `largest`: null, or [cols], becomes the largest magnitude in each column, if
// that is larger and a number.
void round_to_bfloat16_(float* entries, int64_t rows, int64_t cols, float* largest = nullptr);

// The matrices in FP32, their entries rounded to BF16. Those that are FP32 get memory.
Matrices rounded_to_bfloat16(const Matrices& A, at::Tensor& memory);

}  // namespace torchdion::linalg::cpu
