#pragma once

#include <ATen/core/Tensor.h>

namespace torchdion::linalg {

// X_i ← X_i / (slack ‖X_i‖_F) for every matrix of X ([count, m, n], contiguous), in place; matrices of zeros stay.
// Squares are summed in FP64, whose range those of FP64 entries must not leave.
void frobenius_normalize_(const at::Tensor& X, double slack);

}  // namespace torchdion::linalg
