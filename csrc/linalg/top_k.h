#pragma once

#include <ATen/core/Tensor.h>

namespace torchdion::linalg {

// The k entries of the largest magnitude of each row of `entries` ([count, size], contiguous, FP32 or FP64), in the
// order of their places: chosen ([count, 2, k], contiguous, of the same dtype) ← their places, as numbers, then the
// entries themselves. Of equal magnitudes the first are taken; NaN is the largest. k is at most `size`, which is at
// most 2²⁴.
void top_k(const at::Tensor& chosen, const at::Tensor& entries);

}  // namespace torchdion::linalg
