#include "algorithms/dion.h"

#include "algorithms/exchange.h"
#include "linalg/accumulate.h"
#include "linalg/backend.h"
#include "linalg/cholesky_qr.h"
#include "linalg/column_normalize.h"
#include "linalg/copy.h"
#include "linalg/gemm.h"
#include "linalg/orthonormalize.h"

namespace torchdion::algorithms {

using comm::Order;
using linalg::Matrices;

namespace {

linalg::OrthonormalizeOptions orthonormalize_options(const DionBatch& batch, const DionHyperparameters& hyper) {
  linalg::OrthonormalizeOptions options;
  options.method = hyper.orthonormalize;
  options.oversample = hyper.rcqr_oversample;
  options.random = linalg::RandomMatrix::sketch(hyper.seed, batch.step);
  options.precision = linalg::precision_on(batch.X.device, hyper.precision);
  const double rounding = linalg::rounding_noise(batch.workspace.scalar_type(), batch.global_cols, options.precision);
  options.noise = {rounding, rounding};
  options.order = batch.order;
  return options;
}

}  // namespace

int64_t dion_workspace(const DionBatch& batch) {
  const int64_t factors_of_n = batch.layout.rows.absent() ? 1 : 2;
  return batch.X.count() * (batch.X.rows + factors_of_n * batch.X.cols) * batch.r;
}

comm::Task<> dion(DionBatch batch, DionHyperparameters hyper) {
  const Matrices &X = batch.X, &B = batch.M, &M = batch.M;
  const int64_t count = X.count(), m = X.rows, n = X.cols, r = batch.r;
  Layout layout = batch.layout;
  const Axis rows = layout.rows, cols = layout.cols, replicas = layout.replicas;
  const Axis dense = batch.compressed ? Axis() : replicas, compressed = batch.compressed ? replicas : Axis();
  layout.replicas = compressed;
  const double mean = 1.0 / compressed.size;
  at::Tensor P = batch.workspace.narrow(0, 0, count * m * r).view({count, m, r});
  at::Tensor R = batch.workspace.narrow(0, count * m * r, count * n * r).view({count, n, r});
  Matrices Ps(P), Rs(R);
  linalg::upload({&batch.X, &batch.G, &batch.M, &batch.Q, &Ps, &Rs});
  Matrices Q = batch.Q;

  // B = M + G, where M lies
  const double alpha = hyper.maximize ? -batch.gradient_factor : batch.gradient_factor;
  linalg::accumulate_(B, batch.G, alpha, batch.zeroed);
  co_await average_(B, batch.workspace, dense);

  // P = orthonormalize(B Q)
  at::Tensor whole_Q;
  if (!rows.absent()) {
    whole_Q = batch.workspace.narrow(0, count * (m + n) * r, count * n * r).view({count, n, r});
    co_await gather_columns_(whole_Q, batch.Q, R, rows);
    Q = Matrices(whole_Q);
  }
  linalg::gemm_(Ps, B, Q, mean, 0, hyper.precision);
  const linalg::OrthonormalizeOptions options = orthonormalize_options(batch, hyper);
  co_await orthonormalize_sum_(P, layout, batch.global_rows, options, batch.dealt);

  // R = Bᵀ P
  linalg::gemm_(Rs, B.t(), Ps, mean, 0, hyper.precision);
  co_await comm::sum(R, rows, batch.order);
  co_await comm::sum(R, compressed, Order::any);

  // M = B − (1 − μ) P Rᵀ
  linalg::gemm_(M, Ps, Rs.t(), -(1 - hyper.mu), 1, hyper.precision);

  // Q = column_normalize(R)
  at::Tensor squares;
  if (!cols.absent()) {
    squares = linalg::column_square_sums(Rs);
    co_await comm::sum(squares, cols, batch.order);
  }
  linalg::column_normalize_(Q, Rs, squares);

  // X = (1 − η λ) X − η sqrt(m/n) P Qᵀ
  linalg::gemm_(X, Ps, Q.t(), -hyper.lr * batch.shape_factor, 1 - hyper.lr * hyper.weight_decay, hyper.precision);
  if (!rows.absent()) {
    const Piece piece = rows.piece(r);
    linalg::copy_(batch.Q, Matrices(whole_Q.narrow(2, piece.begin, piece.size)));
  }
}

}  // namespace torchdion::algorithms
