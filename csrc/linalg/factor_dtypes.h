// What GPUs compute P and its Gram matrices in: rules that plans follow where there is no GPU.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchdion/options.h>

namespace torchdion::linalg {

// Whether tensor cores read fewer bits of P than FP32 has.
inline bool is_rounded_on_gpu(at::ScalarType dtype, Precision precision) {
  return dtype == at::kBFloat16 || (dtype == at::kFloat && precision != Precision::highest);
}

// What P is stored in for its products.
inline at::ScalarType factor_dtype_on_gpu(at::ScalarType dtype, Precision precision) {
  return dtype == at::kFloat && precision == Precision::medium ? at::kBFloat16 : dtype;
}

// What its Gram matrices and sketches are summed in.
inline at::ScalarType sum_dtype_on_gpu(at::ScalarType dtype, Precision precision) {
  return is_rounded_on_gpu(dtype, precision) ? at::kFloat : at::kDouble;
}

}  // namespace torchdion::linalg
