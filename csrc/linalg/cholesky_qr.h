// Cholesky QR: P ← the orthonormal factor of P = Q R, from products alone, over an axis that may cut the rows of P.
//
// The Gram matrix PᵀP is summed in FP64 and equilibrated (its diagonal made 1), so that columns of any scale weigh
// the same and a condition number of 1/ε of FP32 data can be resolved. `noise` says how much of each column is
// rounding; a column whose part outside the span of those before it is not longer, by a margin, than what their
// rounding makes of it carries no signal: it becomes exactly zero. Columns that a first pass leaves far from
// orthonormal are made so by further passes. Squares of FP64 entries must be within the range of FP64.
#pragma once

#include <torchdion/layout.h>
#include <torchdion/options.h>

#include "comm/sums.h"
#include "comm/task.h"
#include "linalg/noise.h"
#include "linalg/triangular_inverse.h"

namespace torchdion::linalg {

struct CholeskyQrOptions {
  Noise noise;                           // the part of each column of P that is rounding
  comm::Order order = comm::Order::any;  // of sums over the axis that cuts P's rows
  Precision precision = Precision::highest;
  SignalCounts counts = {};
};

// P ([count, m, r], contiguous) ← its orthonormal factor, in place. `rows` is the axis that cuts its m rows,
// `global_rows` their number on all ranks.
comm::Task<> cholesky_qr_(at::Tensor P, Axis rows, int64_t global_rows, CholeskyQrOptions options);

// As cholesky_qr_, in passes that follow one of another kind: `first` says what that left as noise.
comm::Task<> cholesky_passes_(at::Tensor P, Axis rows, int passes, CholeskyPass first, CholeskyQrOptions options);

// How many passes cholesky_qr_ makes over an axis, each of which sums r (r + 1) / 2 elements: a number that no data
// changes, so that every rank issues the same collectives.
int passes_over_axis(at::ScalarType dtype);

}  // namespace torchdion::linalg
