#pragma once

#include "linalg/matrices.h"

namespace torchdion::linalg {

// M_i ← M_i + α G_i in place; M and G may differ in dtype and strides. With `zero_nonfinite`, entries of G that are
// NaN or infinite count as zero. Returns how many did (0 without the flag).
int64_t accumulate_(const Matrices& M, const Matrices& G, double alpha, bool zero_nonfinite);

// How many entries are NaN or infinite.
int64_t count_nonfinite(const Matrices& G);

}  // namespace torchdion::linalg
