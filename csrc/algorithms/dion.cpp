#include "algorithms/dion.h"

#include "comm/collectives.h"
#include "linalg/accumulate.h"
#include "linalg/cholesky_qr.h"
#include "linalg/column_normalize.h"
#include "linalg/gemm.h"
#include "linalg/orthonormalize.h"

namespace torchdion::algorithms {

using comm::all_reduce;
using linalg::Matrices;

int64_t dion_workspace(const Matrices& X, int64_t r) { return X.count() * (X.rows + X.cols) * r; }

comm::Task<> dion(DionBatch batch, DionHyperparameters hyper) {
  const Matrices &X = batch.X, &B = batch.M, &M = batch.M, &Q = batch.Q;
  const int64_t count = X.count(), m = X.rows, n = X.cols, r = Q.cols;
  const Axis rows = batch.layout.rows, cols = batch.layout.cols;
  at::Tensor P = batch.workspace.narrow(0, 0, count * m * r).view({count, m, r});
  at::Tensor R = batch.workspace.narrow(0, count * m * r, count * n * r).view({count, n, r});

  // B = M + G, where M lies
  const double alpha = hyper.maximize ? -batch.gradient_factor : batch.gradient_factor;
  *batch.nonfinite += linalg::accumulate_(B, batch.G, alpha, batch.zero_nonfinite);

  // P = orthonormalize(B Q)
  linalg::gemm_(Matrices(P), B, Q, 1, 0);
  co_await all_reduce(P, cols);
  linalg::OrthonormalizeOptions options;
  options.method = hyper.orthonormalize;
  options.oversample = hyper.rcqr_oversample;
  options.random = linalg::RandomMatrix::sketch(hyper.seed, batch.step);
  const double rounding = linalg::rounding_noise(P.scalar_type(), n);
  options.noise = {rounding, rounding};
  co_await linalg::orthonormalize_(P, rows, rows.rank * m, batch.global_rows, options);

  // R = Bᵀ P
  linalg::gemm_(Matrices(R), B.t(), Matrices(P), 1, 0);
  co_await all_reduce(R, rows);

  // M = B − (1 − μ) P Rᵀ
  linalg::gemm_(M, Matrices(P), Matrices(R).t(), -(1 - hyper.mu), 1);

  // Q = column_normalize(R)
  at::Tensor squares = linalg::column_square_sums(Matrices(R));
  co_await all_reduce(squares, cols);
  linalg::column_normalize_(Q, Matrices(R), squares);

  // X = (1 − η λ) X − η sqrt(m/n) P Qᵀ
  linalg::gemm_(X, Matrices(P), Q.t(), -hyper.lr * batch.shape_factor, 1 - hyper.lr * hyper.weight_decay);
}

}  // namespace torchdion::algorithms
