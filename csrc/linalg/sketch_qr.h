#pragma once

#include "linalg/cholesky_inverse.h"

namespace torchdion::linalg {

// The inverse, in `dtype`, of the R factor of a QR of each sketch S P ([count, k, r] FP64, k ≥ r), columns scaled to
// unit length first. `noise` is the part of each column that is rounding; a column that carries
// no more than what the rounding of those before it makes of it gets a zero column (see cholesky_qr.h). `in_margin`, or
// null: as in SignalCounts. SP is scaled.
TriangularInverse sketch_qr_inverse(const at::Tensor& SP, Noise noise, at::ScalarType dtype,
                                    Precision precision = Precision::highest, int64_t* in_margin = nullptr);

// [count, r]: the column norms of R⁻¹ for upper triangular R ([count, r, r] FP64): how much each orthonormal column
// amplifies the rounding of the columns it is made of. Infinite or NaN where R is singular.
at::Tensor column_amplification(const at::Tensor& R);

}  // namespace torchdion::linalg
