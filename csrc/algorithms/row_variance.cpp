#include "algorithms/row_variance.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>

#include "algorithms/cost.h"
#include "comm/sums.h"
#include "linalg/copy.h"

namespace torchdion::algorithms {

using linalg::Matrices;

comm::Task<at::Tensor> row_factors(at::Tensor squares, Matrices v, at::Tensor chosen, Batch batch, Options options,
                                   at::Tensor unchanged) {
  constexpr double kEpsilon = 1e-8;
  const Axis rows = batch.layout.rows, cols = batch.layout.cols;
  const double beta2 = options.number("muon_beta2");
  const at::Tensor before = at::empty({v.count(), v.rows, 1}, squares.options());
  linalg::copy_(Matrices(before), v);
  const at::Tensor old_v = before.squeeze(2);
  co_await comm::sum(squares, cols, batch.order);

  at::Tensor new_v = old_v * beta2 + squares * ((1 - beta2) / static_cast<double>(batch.shape.n));
  at::Tensor factors = (new_v.sqrt() + kEpsilon).reciprocal();
  if (chosen.defined()) {
    new_v = at::where(chosen, new_v, old_v);
    factors = factors * chosen;
  }
  if (unchanged.defined()) new_v = at::where(unchanged.ne(0).unsqueeze(1), old_v, new_v);
  linalg::copy_(v, Matrices(new_v.unsqueeze(2)), 1, batch.gradients.left_out);

  // ‖U‖² before and after
  at::Tensor norms = at::stack({squares.sum(1), (squares * factors.square()).sum(1)}, 1);
  co_await comm::sum(norms, rows, batch.order);
  const at::Tensor after = norms.select(1, 1);
  const at::Tensor scale = (norms.select(1, 0) / after).sqrt().masked_fill(after.eq(0), 0);
  co_return (factors * scale.unsqueeze(1)).to(batch.shape.computing);
}

void add_row_factors(Cost& cost, const BatchShape& shape, const Layout& layout) {
  constexpr int64_t kFP64 = 8;
  if (!layout.cols.absent()) add(cost.cols, all_reduced(shape.count * shape.rows, kFP64, layout.cols));
  if (!layout.rows.absent()) add(cost.rows, all_reduced(shape.count * 2, kFP64, layout.rows));
}

}  // namespace torchdion::algorithms
