// What makes P orthonormal by a product: the inverse of a triangular factor, of P's Gram matrix or of a sketch, robust
// where columns carry no signal.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchdion/options.h>

#include <limits>
#include <vector>

#include "linalg/matrices.h"
#include "linalg/noise.h"

namespace torchdion::linalg {

// P's entries, FP32, are rounded to what products of this precision read on their device (precision_on).
void round_operand_(const at::Tensor& P, Precision precision);

// H_i ← P_iᵀ P_i: [count, r, r], of which only the lower triangle is to be read. FP64, or FP32 where a GPU rounds P.
// P's entries are first rounded in place as round_operand_ does: then products are exact, and 2⁻²⁴ that sums in FP32
// lose is little beside what P has lost. A CPU with BF16 products sums in FP32 too, of columns that it has brought near
// 1, so that no square is beyond the range of FP32. On a GPU that is asked for by `exponents`, which become [count, r]
// int32, or stay undefined in FP64: the columns of P are now 2^-exponent times what they were, and H is theirs.
at::Tensor gram(const Matrices& P, Precision precision = Precision::highest, at::Tensor* exponents = nullptr);

// What the passes of a Cholesky QR have in common.
struct CholeskyPass {
  // [count, r] FP64: the part of each column that is rounding; every pass makes it the next one's. Undefined: `given`.
  at::Tensor noise = {};
  // On a CPU, of FP64 matrices after their first pass, [count, r, r]: the same by the columns that were given. Row j is
  // how column j is made of them, each times its noise: what two columns have of one rounding may cancel.
  at::Tensor shares = {};
  // On a GPU, of columns that have only been scaled, [count, r] int32 or undefined: they were 2^exponent times as long,
  // and this rank's rows of P are of columns that are 2^shift times as short as the Gram matrix has them.
  at::Tensor exponents = {}, shift = {};
  int64_t rows = 0;                   // that Gram matrices are summed over, on all ranks
  at::ScalarType dtype = at::kFloat;  // P's
  Precision precision = Precision::highest;
  Noise given = {};
  // Matrices of no larger amplification have no further pass.
  double settled = std::numeric_limits<double>::infinity();
  SignalCounts counts = {};  // without signal: of matrices whose last pass this is
};

// What turns P into its orthonormal factor: P ← P diag(scale) inverse. Without a scale, where P is so small that
// `inverse` could not hold the factor, orthogonal columns of one length less than 1, for a further pass to make longer.
struct TriangularInverse {
  at::Tensor
      scale;  // [count, r] FP64: one over the column norms, 0 for a column without signal; undefined: in `inverse`
  at::Tensor inverse;    // [count, r, r] in P's dtype, upper triangular: the inverse of the equilibrated R
  at::Tensor rest = {};  // where `inverse` is rounded to what tensor cores read: what is left of it, rounded likewise
  // Per matrix, the largest column norm of `inverse`: how far P was from orthonormal. Empty where the host would have
  // to wait for it.
  std::vector<double> amplification = {};
};

// Factors the Gram matrices (lower triangles; overwritten, and let go as soon as they are read).
TriangularInverse cholesky_inverse(at::Tensor gram, CholeskyPass& pass);

// out_i ← P_i diag(scale_i) inverse_i. A CPU does it in place, with `out` P itself, a GPU to other memory.
void multiply_triangular_(const Matrices& out, const Matrices& P, const TriangularInverse& factor,
                          Precision precision = Precision::highest);

// The inverse, in `dtype`, of the R factor of a QR of each sketch S P ([count, k, r] FP64, k ≥ r), columns scaled to
// unit length first. `noise` is the part of each column that is rounding; a column that carries no more than what the
// rounding of those before it makes of it gets a zero column (see cholesky_qr.h). `in_margin`, or null: as in
// SignalCounts. SP is scaled.
TriangularInverse sketch_qr_inverse(const at::Tensor& SP, Noise noise, at::ScalarType dtype,
                                    Precision precision = Precision::highest, int64_t* in_margin = nullptr);

// [count, r]: the column norms of R⁻¹ for upper triangular R ([count, r, r] FP64): how much each orthonormal column
// amplifies the rounding of the columns it is made of. Infinite or NaN where R is singular.
at::Tensor column_amplification(const at::Tensor& R);

}  // namespace torchdion::linalg
