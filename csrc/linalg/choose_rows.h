#pragma once

#include <ATen/core/Tensor.h>

namespace torchdion::linalg {

// Of each matrix the k rows of the largest norms, by the first 24 bits of these; of equal ones the first, NaN before
// all.
struct ChosenRows {
  at::Tensor rows;   // [count, k], int32, ascending
  at::Tensor slots;  // [count, rows], int32: the place of each row among them, or −1
};

// `norms`: [count, rows], FP64, not negative, contiguous. k is at most as many as there are rows.
ChosenRows choose_rows(const at::Tensor& norms, int64_t k);

}  // namespace torchdion::linalg
