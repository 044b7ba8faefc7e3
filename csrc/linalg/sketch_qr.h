#pragma once

#include "linalg/cholesky_qr.h"

namespace torchdion::linalg {

// The inverse of the R factor of a QR of each sketch S P ([count, k, r], k ≥ r), columns scaled to unit length first.
// A column with less than `tolerance` of its length outside the span of those before it gets a zero column.
TriangularInverse sketch_qr_inverse(const at::Tensor& SP, double tolerance);

}  // namespace torchdion::linalg
