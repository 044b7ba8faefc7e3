// Gram matrices, and the rounding of what GPUs read for them.
#pragma once

#include <torchdion/options.h>

#include "linalg/matrices.h"

namespace torchdion::linalg {

// P's entries, FP32, are rounded to what products of this precision read. CPUs round nothing.
void round_operand_(const at::Tensor& P, Precision precision);

// H_i ← P_iᵀ P_i: [count, r, r], of which only the lower triangle is set. FP64, or FP32 where a GPU may round and P is
// nearly orthonormal. A GPU first rounds P's entries, FP32, in place, to what products of this precision read.
at::Tensor gram(const Matrices& P, Precision precision = Precision::highest, bool is_nearly_orthonormal = false);

}  // namespace torchdion::linalg
