#pragma once

#include <ATen/core/Tensor.h>

namespace torchdion::linalg {

// X_i / (slack ‖X_i‖_F) for every matrix of X ([count, m, n], contiguous or the transpose of what is). On CPUs X itself
// is divided, and nothing is returned. GPUs return what it is still to be multiplied by ([count], in the computing
// dtype), and change entries by powers of two alone, where their products would leave the range of FP32. Matrices of
// zeros stay, with a factor of 0.
//
// Squares are summed in FP64, whose range those of FP64 entries must not leave. `squares`: what look_ahead_() has
// summed of X, or undefined.
at::Tensor frobenius_normalize_(const at::Tensor& X, double slack, const at::Tensor& squares = {});

}  // namespace torchdion::linalg
