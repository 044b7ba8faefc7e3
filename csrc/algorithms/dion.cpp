#include "algorithms/dion.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/where.h>

#include "algorithms/exchange.h"
#include "linalg/accumulate.h"
#include "linalg/backend.h"
#include "linalg/cholesky_qr.h"
#include "linalg/column_normalize.h"
#include "linalg/copy.h"
#include "linalg/gemm.h"
#include "linalg/orthonormalize.h"
#include "linalg/scale.h"

namespace torchdion::algorithms {

using comm::Order;
using linalg::Matrices;

namespace {

linalg::OrthonormalizeOptions orthonormalize_options(const DionBatch& batch, const DionHyperparameters& hyper) {
  linalg::OrthonormalizeOptions options;
  options.method = hyper.orthonormalize;
  options.oversample = hyper.rcqr_oversample;
  options.random = linalg::RandomMatrix::sketch(hyper.seed, batch.step);
  options.random.steps_before = batch.steps_before;
  options.precision = linalg::precision_on(batch.X.device, hyper.precision);
  const at::ScalarType dtype = batch.workspace.scalar_type();
  const double rounding = linalg::rounding_noise(dtype, batch.global_cols, options.precision);
  options.noise = {rounding, rounding, linalg::signal_margin(dtype, options.precision)};
  options.order = batch.order;
  options.counts = batch.counts;
  return options;
}

// linalg::DionFactors as the product takes them.
struct Factors {
  linalg::Factor update, keep;
};

Factors factors_of(const DionBatch& batch, const DionHyperparameters& hyper) {
  if (!batch.multipliers.defined() && !batch.gradients.left_out) {
    const linalg::DionFactors all =
        linalg::dion_factors(batch.shape_factor, hyper.lr, hyper.weight_decay, /*left_out=*/false);
    return {all.update, all.keep};
  }
  const linalg::FactorRule rule{batch.shape_factor, hyper.lr, hyper.weight_decay, batch.multipliers,
                                batch.gradients.left_out};
  const at::Tensor all = linalg::device_factors(rule, batch.workspace.options());
  return {linalg::Factor(all.narrow(0, 0, 1)), linalg::Factor(all.narrow(0, 1, 1))};
}

// X ← keep X + update P Qᵀ. A product has one factor for all its matrices: where some stay, each is a product of its
// own.
void update_(const Matrices& X, const Matrices& P, const Matrices& Qt, const Factors& factors,
             const at::Tensor& unchanged, Precision precision) {
  if (!unchanged.defined()) {
    linalg::gemm_(X, P, Qt, factors.update, factors.keep, precision);
    return;
  }
  const at::TensorOptions options = unchanged.options().dtype(P.dtype);
  const auto number = [&](const linalg::Factor& factor) {
    return factor.device.defined() ? factor.device : at::full({1}, factor.value, options);
  };
  const at::Tensor update = number(factors.update);
  const at::Tensor keep = at::where(unchanged.ne(0), at::ones({1}, options), number(factors.keep));
  for (int64_t i = 0; i < X.count(); ++i) {
    linalg::gemm_(X.slice(i, i + 1), P.slice(i, i + 1), Qt.slice(i, i + 1), linalg::Factor(update),
                  linalg::Factor(keep.narrow(0, i, 1)), precision);
  }
}

// Where P, R and the whole Q begin in the workspace, in elements: P and R where tensor cores can read them.
struct Places {
  static constexpr int64_t kAligned = 16;
  int64_t R, Q, end;

  explicit Places(const DionBatch& batch) {
    const int64_t count = batch.X.count(), of_Q = count * batch.X.cols * batch.r;
    R = (count * batch.X.rows * batch.r + kAligned - 1) / kAligned * kAligned;
    Q = R + of_Q;
    end = batch.layout.rows.absent() ? Q : Q + of_Q;
  }
};

}  // namespace

int64_t dion_workspace(const DionBatch& batch) { return Places(batch).end; }

comm::Task<> dion(DionBatch batch, DionHyperparameters hyper) {
  const Matrices &X = batch.X, &B = batch.M, &M = batch.M;
  const int64_t count = X.count(), m = X.rows, n = X.cols, r = batch.r;
  Layout layout = batch.layout;
  const Axis rows = layout.rows, cols = layout.cols, replicas = layout.replicas;
  const Axis dense = batch.compressed ? Axis() : replicas, compressed = batch.compressed ? replicas : Axis();
  layout.replicas = compressed;
  const double mean = 1.0 / compressed.size;
  at::Tensor P = batch.workspace.narrow(0, 0, count * m * r).view({count, m, r});
  const Places places(batch);
  at::Tensor R = batch.workspace.narrow(0, places.R, count * n * r).view({count, n, r});
  Matrices Ps(P), Rs(R);
  linalg::upload({&batch.X, &batch.G, &batch.M, &batch.Q, &Ps, &Rs});
  Matrices Q = batch.Q;

  // B = M + G, where M lies
  at::Tensor unchanged;
  if (!batch.unchanged.empty()) unchanged = at::cat(batch.unchanged);
  linalg::GradientRule gradients = batch.gradients;
  if (hyper.maximize) gradients.factor *= -1;
  if (unchanged.defined()) gradients.unchanged = unchanged.const_data_ptr<float>();
  linalg::accumulate_(B, batch.G, gradients);
  co_await average_(B, batch.workspace, dense, gradients.left_out, unchanged);

  // P = orthonormalize(B Q)
  at::Tensor whole_Q;
  if (!rows.absent()) {
    whole_Q = batch.workspace.narrow(0, places.Q, count * n * r).view({count, n, r});
    co_await gather_columns_(whole_Q, batch.Q, R, rows);
    Q = Matrices(whole_Q);
  }
  linalg::gemm_(Ps, B, Q, mean, 0, hyper.precision);
  // Without P nothing else of a matrix changes: R is zero, and a zero column of R keeps its column of Q.
  if (gradients.left_out || gradients.unchanged) linalg::clear_(Ps, gradients.left_out, gradients.unchanged);
  const linalg::OrthonormalizeOptions options = orthonormalize_options(batch, hyper);
  const at::Tensor scale = co_await orthonormalize_sum_(P, layout, batch.global_rows, options, batch.dealt);

  // R = Bᵀ P
  linalg::gemm_(Rs, B.t(), Ps, mean, 0, hyper.precision);
  co_await comm::sum(R, rows, batch.order);
  co_await comm::sum(R, compressed, Order::any);

  // M = B − (1 − μ) P Rᵀ
  linalg::gemm_(M, Ps, Rs.t(), -(1 - hyper.mu), 1, hyper.precision);

  // Q = column_normalize(R)
  if (R.scalar_type() == at::kDouble) linalg::scale_columns_(R, scale);
  at::Tensor squares;
  if (!cols.absent()) {
    squares = linalg::column_square_sums(Rs);
    co_await comm::sum(squares, cols, batch.order);
  }
  linalg::column_normalize_(Q, Rs, squares);

  // X = (1 − η λ) X − η sqrt(m/n) P Qᵀ
  update_(X, Ps, Q.t(), factors_of(batch, hyper), unchanged, hyper.precision);
  if (!rows.absent()) {
    const Piece piece = rows.piece(r);
    linalg::copy_(batch.Q, Matrices(whole_Q.narrow(2, piece.begin, piece.size)));
  }
}

}  // namespace torchdion::algorithms
