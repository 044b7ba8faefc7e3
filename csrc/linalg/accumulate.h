#pragma once

#include "linalg/matrices.h"
#include "linalg/step_numbers.h"

namespace torchdion::linalg {

// M_i ← M_i + G_i in place, as the rule has it; M and G may differ in dtype and strides.
void accumulate_(const Matrices& M, const Matrices& G, const GradientRule& rule = {});

// *found, in the memory of the matrices' device, grows by the entries that are NaN or infinite.
void count_nonfinite(const Matrices& G, int64_t* found);

}  // namespace torchdion::linalg
