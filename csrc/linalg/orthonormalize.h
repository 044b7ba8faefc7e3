// The choice among the ways to orthonormalize P; all give the same P up to rounding and the sign of its columns, and
// exactly zero columns where P carries no signal.
#pragma once

#include <torchdion/layout.h>
#include <torchdion/options.h>

#include "comm/task.h"
#include "linalg/cholesky_qr.h"
#include "linalg/matrices.h"
#include "linalg/sketch.h"

namespace torchdion::linalg {

struct OrthonormalizeOptions : CholeskyQrOptions {
  Orthonormalize method = Orthonormalize::automatic;
  double oversample = 1.25;  // k / r: the sketch's rows over P's columns
  RandomMatrix random;       // what the sketch is drawn from
};

// P ([count, m, r], contiguous, FP32 or FP64) ← its orthonormal factor, in place. `rows` is the axis that cuts its m
// rows, `row_offset` the global index of its first row here, `global_rows` the number of rows on all ranks.
comm::Task<> orthonormalize_(at::Tensor P, Axis rows, int64_t row_offset, int64_t global_rows,
                             OrthonormalizeOptions options);

// Algorithm 2 of the paper (randomized Cholesky QR): a QR of the sketch S P, then one Cholesky QR.
comm::Task<> rcqr_(at::Tensor P, Axis rows, int64_t row_offset, int64_t global_rows, OrthonormalizeOptions options);

// Householder QR, on an axis that is absent. Matrices with columns that may carry no signal go to cholesky_qr_, because
// a Householder reflection gives such a column an arbitrary direction.
comm::Task<> householder_qr_(at::Tensor P, Axis rows, int64_t global_rows, OrthonormalizeOptions options);

// Elements that orthonormalize_ sums for each P over the axis that cuts its rows.
int64_t orthonormalize_elements(int64_t r, int64_t global_rows, Orthonormalize method, double oversample,
                                at::ScalarType dtype);

// Floating-point operations on `rows` rows of each P (arXiv 2504.05295, Appendix H): 6.5 m r² + 13/6 r³ of rcqr at an
// oversampling of 1.25, 3 m r² + r³/3 of each Cholesky QR, of which FP64 takes three and FP32 two.
int64_t orthonormalize_operations(int64_t rows, int64_t r, int64_t global_rows, Orthonormalize method,
                                  double oversample, at::ScalarType dtype);

// Bytes that each P takes on a GPU beside itself: its Gram matrix, the factor of that and another P, of rcqr two of
// each, and what a factorization notes. P is `given` in one dtype and `stored` in another, its Gram matrix is summed in
// a third.
struct FactorDtypes {
  at::ScalarType given, stored, sums;
};
int64_t orthonormalize_bytes_on_gpu(int64_t rows, int64_t r, Orthonormalize method, const FactorDtypes& dtypes);

}  // namespace torchdion::linalg
