#include "algorithms/row_variance.h"

#include "comm/sums.h"
#include "linalg/rows.h"

namespace torchdion::algorithms {

using linalg::Matrices;

comm::Task<at::Tensor> row_factors(at::Tensor squares, Matrices v, at::Tensor source, Batch batch, Options options) {
  const Axis rows = batch.layout.rows, cols = batch.layout.cols;
  co_await comm::sum(squares, cols, batch.order);
  const linalg::VarianceRule rule{options.number("muon_beta2"), batch.shape.n, batch.frozen};
  const linalg::RowFactors of_rows = linalg::row_factors_(squares, v, source, rule);
  co_await comm::sum(of_rows.norms, rows, batch.order);
  co_return linalg::keep_norms(of_rows, batch.shape.computing);
}

void add_row_factors(Cost& cost, const BatchShape& shape, int64_t rows, const Layout& layout) {
  constexpr int64_t kFP64 = 8;
  if (!layout.cols.absent()) add(cost.cols, all_reduced(shape.count * rows, kFP64, layout.cols));
  if (!layout.rows.absent()) add(cost.rows, all_reduced(shape.count * 2, kFP64, layout.rows));
}

}  // namespace torchdion::algorithms
