#pragma once

#include <ATen/core/Tensor.h>

namespace torchdion::linalg {

// B_i ← f_i^power (A_i + a I) of square matrices ([count, p, p], contiguous, alike in dtype). B may be A. `factors`:
// [count], in the computing dtype; undefined: 1.
void add_identity_(const at::Tensor& B, const at::Tensor& A, double a, const at::Tensor& factors = {}, int power = 1);

}  // namespace torchdion::linalg
