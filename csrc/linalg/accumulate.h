#pragma once

#include "linalg/matrices.h"
#include "linalg/step_numbers.h"

namespace torchdion::linalg {

// M_i ← M_i + G_i in place, as the rule has it; M and G may differ in dtype and strides.
void accumulate_(const Matrices& M, const Matrices& G, const GradientRule& rule = {});

// *found, in the memory of the matrices' device, grows by the entries that are NaN or infinite.
void count_nonfinite(const Matrices& G, int64_t* found);

// M_i ← M_i + G_i as the rule has it (accumulate_()), and in the same pass L_i ← the look-ahead of the new M and of G_i
// as it counts. L_i becomes zero where the rule leaves M_i as it is. All may differ in dtype and strides.
//
// Where `sums_squares` is asked for, GPUs return the sums of the squares of parts of each L as it is stored ([count,
// parts], FP64), whose range those of FP64 entries may leave. Else, and on CPUs, what is returned is undefined.
at::Tensor look_ahead_(const Matrices& L, const Matrices& M, const Matrices& G, const GradientRule& rule,
                       const LookAheadFactors& ahead, bool sums_squares = false);

}  // namespace torchdion::linalg
