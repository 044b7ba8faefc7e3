// Gram matrices, and the rounding of what is read for them.
#pragma once

#include <torchdion/options.h>

#include "linalg/matrices.h"

namespace torchdion::linalg {

// P's entries, FP32, are rounded to what products of this precision read on their device (precision_on).
void round_operand_(const at::Tensor& P, Precision precision);

// H_i ← P_iᵀ P_i: [count, r, r], of which only the lower triangle is to be read. FP64, or FP32 where a GPU may round
// and P is nearly orthonormal. P's entries, FP32, are first rounded in place as round_operand_ does. A CPU with BF16
// products then sums them in FP32, of columns that it has brought near 1: 2⁻²⁴ of Gram matrices is little beside the
// 2⁻⁸ that P has lost, and no square is beyond the range of FP32.
at::Tensor gram(const Matrices& P, Precision precision = Precision::highest, bool is_nearly_orthonormal = false);

}  // namespace torchdion::linalg
