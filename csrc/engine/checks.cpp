#include "engine/checks.h"

#include <ATen/EmptyTensor.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace torchdion::engine {

namespace {

// Whether distinct indices have distinct addresses: from the shortest stride on, each leaps over all before it.
bool has_distinct_elements(const at::Tensor& tensor) {
  if (tensor.numel() == 0 || tensor.is_contiguous()) return true;
  std::vector<int64_t> order(tensor.dim());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return tensor.stride(a) < tensor.stride(b); });
  int64_t extent = 1;
  for (const int64_t d : order) {
    if (tensor.size(d) == 1) continue;
    if (tensor.stride(d) < extent) return false;
    extent += (tensor.size(d) - 1) * tensor.stride(d);
  }
  return true;
}

}  // namespace

void check_parameters(const std::vector<at::Tensor>& X) {
  for (const at::Tensor& x : X) {
    TORCH_CHECK_VALUE(x.is_cpu() && x.layout() == at::kStrided && at::isFloatingType(x.scalar_type()),
                      "torchdion.Dion: a parameter must be a dense floating-point CPU tensor, got ", x.toString(),
                      " of shape ", x.sizes());
    TORCH_CHECK_VALUE(has_distinct_elements(x), "torchdion.Dion: the elements of a parameter must not share memory, ",
                      "got shape ", x.sizes(), " with strides ", x.strides());
  }
  check_storage(X, "parameter");
}

void check_storage(const std::vector<at::Tensor>& tensors, const char* what) {
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.is_cpu() || tensor.layout() != at::kStrided || tensor._is_zerotensor())
      continue;  // has none, or is refused later
    const std::size_t needed = at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.element_size(),
                                                                tensor.storage_offset());
    TORCH_CHECK_VALUE(tensor.numel() == 0 || tensor.storage().nbytes() >= needed, "torchdion.Dion: the storage of a ",
                      what, " of shape ", tensor.sizes(), " must hold its ", needed, " bytes, got ",
                      tensor.storage().nbytes());
  }
}

void check_steps(const std::vector<at::Tensor>& steps) {
  for (const at::Tensor& step : steps) {
    const bool counts = step.scalar_type() == at::kFloat || step.scalar_type() == at::kDouble ||
                        at::isIntegralType(step.scalar_type(), /*includeBool=*/false);
    TORCH_CHECK_VALUE(step.is_cpu() && step.layout() == at::kStrided && step.numel() == 1 && counts,
                      "torchdion.Dion: the state step must be one integer, FP32 or FP64 number on the CPU, got ",
                      step.toString(), " of shape ", step.sizes());
    const double count = step.item<double>();
    TORCH_CHECK_VALUE(count >= 0 && count < 0x1p53, "torchdion.Dion: the state step must count from 0, got ", count);
  }
}

}  // namespace torchdion::engine
