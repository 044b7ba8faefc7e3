#include "engine/gradients.h"

#include <ATen/ops/zeros.h>

#include "linalg/accumulate.h"

namespace torchdion::engine {

void materialize(std::vector<at::Tensor>& gradients) {
  for (at::Tensor& G : gradients) {
    if (G._is_zerotensor()) G = at::zeros(G.sizes(), G.options());
    if (G.is_neg()) G = G.resolve_neg();
  }
}

int64_t count_nonfinite_in(const std::vector<at::Tensor>& gradients) {
  int64_t found = 0;
  for (const at::Tensor& G : gradients) {
    if (G.numel() > 0) found += linalg::count_nonfinite(linalg::Matrices(G.contiguous().view({1, -1})));
  }
  return found;
}

}  // namespace torchdion::engine
