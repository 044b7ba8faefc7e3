// Gram matrices, and the rounding of what is read for them.
#pragma once

#include <torchdion/options.h>

#include "linalg/matrices.h"

namespace torchdion::linalg {

// P's entries, FP32, are rounded to what products of this precision read on their device (precision_on).
void round_operand_(const at::Tensor& P, Precision precision);

// H_i ← P_iᵀ P_i: [count, r, r], of which only the lower triangle is to be read. FP64, or FP32 where a GPU rounds P.
// P's entries are first rounded in place as round_operand_ does: then products are exact, and 2⁻²⁴ that sums in FP32
// lose is little beside what P has lost. A CPU with BF16 products sums in FP32 too, of columns that it has brought near
// 1, so that no square is beyond the range of FP32. On a GPU that is asked for by `exponents`, which become [count, r]
// int32, or stay undefined in FP64: the columns of P are now 2^-exponent times what they were, and H is theirs.
at::Tensor gram(const Matrices& P, Precision precision = Precision::highest, at::Tensor* exponents = nullptr);

}  // namespace torchdion::linalg
