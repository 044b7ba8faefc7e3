// Cholesky QR: P ← the orthonormal factor of P = Q R, from products alone. Its parts, and the whole over an axis that
// may cut the rows of P.
//
// The Gram matrix PᵀP is summed in FP64 and equilibrated (its diagonal made 1), so that columns of any scale weigh
// the same and a condition number of 1/ε of FP32 data can be resolved. `noise` says how much of each column is
// rounding; a column whose part outside the span of those before it is not longer, by a margin, than what their
// rounding makes of it carries no signal: it becomes exactly zero. Columns that a first pass leaves far from
// orthonormal are made so by further passes. FP64 matrices whose squares FP64 does not hold are brought within its
// range by the first one.
#pragma once

#include <torchdion/layout.h>
#include <torchdion/options.h>

#include <limits>

#include "comm/sums.h"
#include "comm/task.h"
#include "linalg/matrices.h"

namespace torchdion::linalg {

// The part of each column of P that is rounding.
struct Noise {
  double own = 0;     // relative to its length
  double mean = 0;    // relative to the root mean square of all lengths: what a product has, where columns may cancel
  double margin = 1;  // a column is signal only if it is longer than the noise by this factor
};

// Columns without signal. In the memory of P's device, or null.
struct SignalCounts {
  int64_t* without_signal = nullptr;  // becomes larger by their number
  int64_t* in_margin = nullptr;       // by how many of them were longer than the noise, but not by the margin
};

// [count, r] FP64: the noise of columns of these lengths ([count, r] FP64), relative to each, at most 1.
at::Tensor relative_noise(const at::Tensor& lengths, Noise noise);

struct CholeskyQrOptions {
  Noise noise;                           // the part of each column of P that is rounding
  comm::Order order = comm::Order::any;  // of sums over the axis that cuts P's rows
  Precision precision = Precision::highest;
  SignalCounts counts = {};
  at::Tensor scale = {};  // of FP64 matrices, or undefined: [count], becomes that which P needed (scale.h)
};

// What the passes of a Cholesky QR have in common.
struct CholeskyPass {
  // [count, r] FP64: the part of each column that is rounding; every pass makes it the next one's. Undefined, and below
  // 0 in matrices that have only been scaled: `given`.
  at::Tensor noise = {};
  // On a CPU, of FP64 matrices after their first pass, [count, r, r]: the same by the columns that were given. Row j is
  // how column j is made of them, each times its noise: what two columns have of one rounding may cancel.
  at::Tensor shares = {};
  int64_t rows = 0;                   // that Gram matrices are summed over, on all ranks
  at::ScalarType dtype = at::kFloat;  // P's
  Precision precision = Precision::highest;
  Noise given = {};
  // Matrices of no larger amplification have no further pass.
  double settled = std::numeric_limits<double>::infinity();
  SignalCounts counts = {};  // without signal: of matrices whose last pass this is
};

// P's entries, FP32, are rounded to what products of this precision read. CPUs round nothing.
void round_operand_(const at::Tensor& P, Precision precision);

// H_i ← P_iᵀ P_i: [count, r, r], of which only the lower triangle is set. FP64, or FP32 where a GPU may round and P is
// orthonormal already but for rounding; there P's entries are first rounded to what its products read.
at::Tensor gram(const Matrices& P, const CholeskyPass& pass = {});

// What turns P into its orthonormal factor: P ← P diag(scale) inverse. Without a scale, where P is so small that
// `inverse` could not hold the factor, orthogonal columns of one length less than 1, for a further pass to make longer.
struct TriangularInverse {
  at::Tensor
      scale;  // [count, r] FP64: one over the column norms, 0 for a column without signal; undefined: in `inverse`
  at::Tensor inverse;    // [count, r, r] in P's dtype, upper triangular: the inverse of the equilibrated R
  at::Tensor rest = {};  // where `inverse` is rounded to what tensor cores read, and far from the identity: what is
                         // left of it, rounded likewise
  // Per matrix, the largest column norm of `inverse`: how far P was from orthonormal. Empty where the host would have
  // to wait for it.
  std::vector<double> amplification = {};
};

// Factors the Gram matrices (lower triangles; overwritten, and let go as soon as they are read).
TriangularInverse cholesky_inverse(at::Tensor gram, CholeskyPass& pass);

// out_i ← P_i diag(scale_i) inverse_i. A CPU does it in place, with `out` P itself, a GPU to other memory.
void multiply_triangular_(const Matrices& out, const Matrices& P, const TriangularInverse& factor,
                          Precision precision = Precision::highest);

// How much longer than the noise of one product a column of B Q must be to count as signal. The momentum in B has noise
// of its own, because it is rounded at every step and what P does not span never decays: in units of rounding_noise()
// B Q has at most 1.4 of it after one step, 2.4 after 200, and three times as much whenever ten times as many follow
// (benchmarks/noise.py): 50 after 100,000. The direction of what is kept is known to 1 / margin, on whatever layout: 2⁸
// in FP32, which drops columns below some 2·10⁻⁴ of the root mean square of all, and 2³⁰ in FP64, 10⁻⁶. Rounded
// operands leave no room for that: 2 drops columns below 2⁻⁹ at Precision::high and 2⁻⁶ at medium, and no layout agrees
// with another about the direction of the shortest that are kept.
double signal_margin(at::ScalarType dtype, Precision precision);

// The rounding noise of the columns of a product with sums of `inner` terms, ε (8 + sqrt(inner) / 4): twice to
// four times what products of low-rank matrices show (benchmarks/noise.py). With `inner` = 0, that of given data, 4 ε.
// Rounded operands add their own: half a unit in the last place of what tensor cores read where they have been rounded
// to nearest, as given data are, a whole one in products, whose operands may be truncated, and so may be their sums of
// every 8 terms: ε inner / 8.
double rounding_noise(at::ScalarType dtype, int64_t inner, Precision precision = Precision::highest);

// P ([count, m, r], contiguous) ← its orthonormal factor, in place. `rows` is the axis that cuts its m rows,
// `global_rows` their number on all ranks.
comm::Task<> cholesky_qr_(at::Tensor P, Axis rows, int64_t global_rows, CholeskyQrOptions options);

// What rounding in `dtype` leaves of a zero pivot of an equilibrated r×r Gram matrix of sums over so many rows.
double least_pivot(at::ScalarType dtype, int64_t rows, int64_t r);

// As cholesky_qr_, in passes that follow one of another kind: `first` says what that left as noise.
comm::Task<> cholesky_passes_(at::Tensor P, Axis rows, int passes, CholeskyPass first, CholeskyQrOptions options);

// How many passes cholesky_qr_ makes over an axis, each of which sums r (r + 1) / 2 elements: a number that no data
// changes, so that every rank issues the same collectives.
int passes_over_axis(at::ScalarType dtype);

}  // namespace torchdion::linalg
