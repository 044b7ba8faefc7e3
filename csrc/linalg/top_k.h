#pragma once

#include <ATen/core/Tensor.h>

namespace torchdion::linalg {

// The k entries of the largest magnitude of each row of `entries` ([count, size], contiguous, FP32 or FP64), in the
// order of their places: chosen ([count, 2, k], contiguous, of the same dtype) ← their places, as numbers, then the
// entries themselves. Of equal magnitudes the first are taken; NaN is the largest. k is at most `size`, which is at
// most 2²⁴.
void top_k(const at::Tensor& chosen, const at::Tensor& entries);

// Of each matrix the k rows of the largest norms, by the first 24 bits of these; of equal ones the first, NaN before
// all.
struct ChosenRows {
  at::Tensor rows;   // [count, k], int32, ascending
  at::Tensor slots;  // [count, rows], int32: the place of each row among them, or −1
};

// `norms`: [count, rows], FP64, not negative, contiguous. k is at most as many as there are rows.
ChosenRows choose_rows(const at::Tensor& norms, int64_t k);

}  // namespace torchdion::linalg
