#pragma once

#include "linalg/matrices.h"

namespace torchdion::linalg {

// M_i ← M_i + α G_i in place; M and G may differ in dtype and strides. Where `zeroed` is there, in the memory of the
// matrices' device, entries of G that are NaN or infinite count as zero, and *zeroed grows by as many.
void accumulate_(const Matrices& M, const Matrices& G, double alpha, int64_t* zeroed = nullptr);

// How many entries are NaN or infinite. Waits for the device.
int64_t count_nonfinite(const Matrices& G);

}  // namespace torchdion::linalg
