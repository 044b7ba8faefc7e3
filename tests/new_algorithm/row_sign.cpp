#include "algorithms/table.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "algorithms/batch.h"
#include "algorithms/shared.h"
#include "comm/sums.h"
#include "linalg/accumulate.h"
#include "linalg/copy.h"
#include "linalg/rates.h"

namespace torchdion::algorithms {

using linalg::Matrices;

namespace {

constexpr Option kRowSignOptions[] = {
    {"mu", 0.95, kBelowOne, "decay of momentum and row scale"},
    kMomentumDtype,
};

enum { kMomentum, kRowScale };
constexpr State kRowSignStates[] = {
    {.name = "momentum", .dtype_option = "momentum_dtype"},
    {.name = "row_scale", .shape = StateShape::rows},
};

at::Tensor read(const Matrices& matrices, at::TensorOptions options) {
  const at::Tensor all = at::empty({matrices.count(), matrices.rows, matrices.cols}, options);
  linalg::copy_(Matrices(all), matrices);
  return all;
}

comm::Task<> row_sign(Batch batch, Options options) {
  const Axis cols = batch.layout.cols, replicas = batch.layout.replicas;
  const Matrices &X = batch.X, &M = batch.states[kMomentum], &scale = batch.states[kRowScale];
  const double mu = options.number("mu");
  const at::TensorOptions made = at::TensorOptions(batch.shape.computing).device(X.device);

  // G: the mean over the replicas
  at::Tensor G = at::zeros({X.count(), X.rows, X.cols}, made);
  linalg::GradientRule rule = batch.gradients;
  rule.factor /= replicas.size;
  linalg::accumulate_(Matrices(G), batch.G, rule);
  co_await comm::sum(G, replicas, comm::Order::any);

  // mean_j |G_ij|
  at::Tensor means = G.abs().sum(-1, /*keepdim=*/true).div_(batch.shape.n);
  co_await comm::sum(means, cols, batch.order);

  const at::Tensor old_X = read(X, made), old_M = read(M, made), old_scale = read(scale, made);
  batch.factors.shape_factor = 1;
  const at::Tensor factors = linalg::device_factors(batch.factors, made);
  const at::Tensor new_M = old_M * mu + G;
  const at::Tensor new_scale = old_scale * mu + means * (1 - mu);
  const at::Tensor new_X = old_X * factors[1] + new_scale * new_M.sign() * factors[0];
  linalg::copy_(M, Matrices(new_M), 1, batch.frozen);
  linalg::copy_(scale, Matrices(new_scale), 1, batch.frozen);
  linalg::copy_(X, Matrices(new_X), 1, batch.frozen);
}

Cost row_sign_cost(const BatchShape& shape, const Layout& layout, const Options&) {
  const auto element = static_cast<int64_t>(c10::elementSize(shape.computing));
  const int64_t rows = shape.count * shape.rows;
  Cost cost;
  if (!layout.cols.absent()) cost.cols = all_reduced(rows, element, layout.cols);
  if (!layout.replicas.absent()) cost.replicas = all_reduced(rows * shape.cols, element, layout.replicas);
  cost.memory_bytes = shape.numel * 6 * element;
  return cost;
}

}  // namespace

// Sign descent by rows: M ← μ M + G;  s_i ← μ s_i + (1 − μ) mean_j |G_ij|;  X_ij ← (1 − η λ) X_ij − η s_i sign(M_ij).
constexpr Algorithm kRowSign{
    .name = "row_sign",
    .title = "RowSign",
    .takes = Takes::matrices,
    .options = kRowSignOptions,
    .states = kRowSignStates,
    .cost = row_sign_cost,
    .update = row_sign,
};

}  // namespace torchdion::algorithms
