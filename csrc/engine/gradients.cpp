#include "engine/gradients.h"

#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>

#include <map>
#include <utility>

#include "linalg/accumulate.h"

namespace torchdion::engine {

void materialize(std::vector<at::Tensor>& gradients) {
  for (at::Tensor& G : gradients) {
    if (G._is_zerotensor()) G = at::zeros(G.sizes(), G.options());
    if (G.is_neg()) G = G.resolve_neg();
  }
}

at::Tensor count_nonfinite_on(c10::Device device, const std::vector<at::Tensor>& gradients) {
  const c10::DeviceGuard guard(device);
  const at::Tensor found = at::zeros({1}, at::TensorOptions(at::kLong).device(device));
  std::map<std::pair<at::ScalarType, int64_t>, std::vector<at::Tensor>> alike;  // those that one call takes
  for (const at::Tensor& G : gradients) {
    if (G.device() == device && G.numel() > 0) {
      alike[{G.scalar_type(), G.numel()}].push_back(G.contiguous().view({1, -1}));
    }
  }
  for (const auto& [kind, rows] : alike) {
    linalg::count_nonfinite(linalg::Matrices(rows), found.mutable_data_ptr<int64_t>());
  }
  return found;
}

}  // namespace torchdion::engine
