// The inverse of the Cholesky factor of a Gram matrix, robust where columns carry no signal, and the product of P with
// it.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchdion/options.h>

#include <limits>
#include <vector>

#include "linalg/matrices.h"
#include "linalg/noise.h"

namespace torchdion::linalg {

// What the passes of a Cholesky QR have in common.
struct CholeskyPass {
  // [count, r] FP64: the part of each column that is rounding; every pass makes it the next one's. Undefined, and below
  // 0 in matrices that have only been scaled: `given`.
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

// What rounding in `dtype` leaves of a zero pivot of an equilibrated r×r Gram matrix of sums over so many rows.
double least_pivot(at::ScalarType dtype, int64_t rows, int64_t r);

}  // namespace torchdion::linalg
