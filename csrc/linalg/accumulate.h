#pragma once

#include "linalg/matrices.h"
#include "linalg/rules/decay.h"
#include "linalg/step_numbers.h"

namespace torchdion::linalg {

// M_i ← M_i + G_i in place, as the rule has it; M and G may differ in dtype and strides.
void accumulate_(const Matrices& M, const Matrices& G, const GradientRule& rule = {});

// X_i ← factors[1] X_i + factors[0] U_i in place, as the rule has it, but for those whose number in `unchanged` is
// there and not 0. The factors (device_factors()) and these numbers lie on the device of X, in FP64 where X or U are
// FP64, else in FP32.
void axpby_(const Matrices& X, const Matrices& U, const at::Tensor& factors, const float* unchanged = nullptr,
            const DirectionRule& rule = {});

// *found, in the memory of the matrices' device, grows by the entries that are NaN or infinite.
void count_nonfinite(const Matrices& G, int64_t* found);

}  // namespace torchdion::linalg
