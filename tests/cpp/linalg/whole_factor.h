#pragma once

#include <ATen/ATen.h>

#include "linalg/triangular_inverse.h"

namespace torchdion::linalg {

// What P is multiplied by.
inline at::Tensor whole_factor(const TriangularInverse& factor) {
  return factor.scale.defined() ? factor.scale.unsqueeze(2) * factor.inverse : factor.inverse;
}

}  // namespace torchdion::linalg
