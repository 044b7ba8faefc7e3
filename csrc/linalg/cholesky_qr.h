// Cholesky QR: P ← the orthonormal factor of P = Q R, from products alone. Its parts, and the whole over an axis that
// may cut the rows of P.
//
// The Gram matrix PᵀP is summed in FP64 and equilibrated (its diagonal made 1), so that columns of any scale weigh
// the same and a condition number of 1/ε of FP32 data can be resolved. `noise` says how much of each column is
// rounding; a column whose part outside the span of those before it is no larger than what
// their rounding makes of it carries no signal: it becomes exactly zero. Columns that a first pass leaves far from
// orthonormal are made so by further passes.
#pragma once

#include <torchdion/layout.h>

#include "comm/sums.h"
#include "comm/task.h"
#include "linalg/matrices.h"

namespace torchdion::linalg {

// The part of each column of P that is rounding.
struct Noise {
  double own = 0;   // relative to its length
  double mean = 0;  // relative to the root mean square of all lengths: what a product has, where columns may cancel
};

// [count, r] FP64: the noise of columns of these lengths ([count, r] FP64), relative to each, at most 1.
at::Tensor relative_noise(const at::Tensor& lengths, Noise noise);

// H_i ← P_iᵀ P_i: [count, r, r] FP64, of which only the lower triangle is set (the rest is zero).
at::Tensor gram(const Matrices& P);

// What turns P into its orthonormal factor: P ← P diag(scale) inverse.
struct TriangularInverse {
  at::Tensor scale;    // [count, r] FP64: one over the column norms; 0 for a column without signal
  at::Tensor inverse;  // [count, r, r] in P's dtype, upper triangular: the inverse of the equilibrated R
  std::vector<double>
      amplification;  // per matrix, the largest column norm of `inverse`: how far P was from orthonormal
};

// Factors the Gram matrices (lower triangles; overwritten). `noise` ([count, r] FP64) is the part of each column that
// is rounding, relative to its length before the first pass, absolute before the others; it becomes that of the columns
// of the result. `rows` is the number of rows that were summed.
TriangularInverse cholesky_inverse(const at::Tensor& gram, const at::Tensor& noise, bool first_pass, int64_t rows,
                                   at::ScalarType dtype);

// P_i ← P_i diag(scale_i) inverse_i, in place.
void multiply_triangular_(const Matrices& P, const TriangularInverse& factor);

// The rounding noise of the columns of a product with sums of `inner` terms, ε (8 + sqrt(inner) / 4): twice to
// four times what products of low-rank matrices show (benchmarks/noise.py). With `inner` = 0, that of given data, 4 ε.
double rounding_noise(at::ScalarType dtype, int64_t inner);

// P ([count, m, r], contiguous) ← its orthonormal factor, in place. `rows` is the axis that cuts its m rows, `order`
// that of sums over it, `global_rows` their number on all ranks.
comm::Task<> cholesky_qr_(at::Tensor P, Axis rows, comm::Order order, int64_t global_rows, Noise noise);

// How many passes cholesky_qr_ makes over an axis, each of which sums r (r + 1) / 2 elements: a number that no data
// changes, so that every rank issues the same collectives.
int passes_over_axis(at::ScalarType dtype);

}  // namespace torchdion::linalg
