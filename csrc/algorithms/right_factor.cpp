#include "algorithms/right_factor.h"

#include <ATen/ops/ones.h>

#include "comm/sums.h"
#include "linalg/axpby.h"
#include "linalg/column_normalize.h"
#include "linalg/copy.h"
#include "linalg/factor_dtypes.h"
#include "linalg/noise.h"
#include "linalg/orthonormalize.h"
#include "linalg/residual.h"

namespace torchdion::algorithms {

using linalg::Matrices;

namespace {

// R's columns are nearly orthogonal. The triangle of this method has a positive diagonal: no column of the factor is
// turned.
constexpr Orthonormalize kMethodOfRight = Orthonormalize::cholesky_qr;

// V ← the orthonormal factor of itself.
comm::Task<> orthonormalize_right_(at::Tensor V, PowerIteration iteration) {
  const Axis cols = iteration.layout.cols;
  linalg::OrthonormalizeOptions how = iteration.orthonormalize;
  how.counts = {};
  how.noise =
      linalg::noise_of_step(V.scalar_type(), iteration.shape.m, how.precision, how.noise.steps, how.noise.steps_before);
  how.noise.most_steps = iteration.orthonormalize.noise.most_steps;
  how.method = kMethodOfRight;
  const int64_t first = cols.piece(iteration.shape.n).begin;
  co_await linalg::orthonormalize_(V, cols, first, iteration.shape.n, how);
}

// update ← update − R / σ
void subtract_scaled_(const PowerIteration& iteration) {
  const at::Tensor factors = at::ones({2}, iteration.residual_scales.options());
  factors.narrow(0, 0, 1).fill_(-1);
  linalg::axpby_(iteration.factors.update, iteration.Rs, factors, {}, {}, iteration.residual_scales);
}

}  // namespace

comm::Task<PowerIteration> find_right_factor(PowerIteration iteration) {
  const Axis rows = iteration.layout.rows, cols = iteration.layout.cols;
  const comm::Order order = iteration.orthonormalize.order;
  const bool measures = iteration.size.residual == Residual::scaled;
  const Factors& factors = iteration.factors;
  at::Tensor V = iteration.R, squares;
  if (measures || (!cols.absent() && !iteration.orthonormalizes_R)) {
    squares = linalg::column_square_sums(Matrices(V));
    co_await comm::sum(squares, cols, order);
  }
  if (measures) {
    const Precision precision = iteration.orthonormalize.precision;  // of the device
    iteration.residual_scales = linalg::residual_scales(
        squares, linalg::rounding_noise(V.scalar_type(), iteration.shape.n, precision), V.options());
  }
  if (iteration.orthonormalizes_R) {
    V = factors.room_for_update.copy_(V);
    co_await orthonormalize_right_(V, iteration);
    squares = linalg::column_square_sums(Matrices(V));
    co_await comm::sum(squares, cols, order);
  }
  linalg::NormalizedOutputs outputs;
  if (factors.copy_of_Q.defined()) outputs.update = factors.copy_of_Q;
  if (!iteration.orthonormalizes_R) {
    if (factors.room_for_update.defined()) outputs.update = factors.room_for_update;
    outputs.copy_of_R = factors.copy_of_R;
    outputs.scales = iteration.residual_scales;
  } else if (factors.copy_of_R.defined()) {
    linalg::copy_(factors.R, iteration.Rs);
  }
  linalg::column_normalize_(iteration.Q(), Matrices(V), squares, outputs);
  if (measures && iteration.orthonormalizes_R) subtract_scaled_(iteration);
  if (rows.absent()) co_return iteration;
  const Piece own = rows.piece(iteration.whole_Q.size(2));
  linalg::copy_(iteration.own_Q, Matrices(iteration.whole_Q.narrow(2, own.begin, own.size)));
  co_return iteration;
}

void add_right_factor(Cost& cost, const BatchShape& shape, const Layout& layout, const IterationSize& size,
                      const Options& options) {
  if (!orthonormalizes_right_factor(options)) return;
  const auto fp64 = int64_t{8};
  const int64_t count = shape.count, r = size.r;
  const double oversample = options.number("rcqr_oversample");
  if (!layout.cols.absent()) {  // the orthonormalization; norms of R's columns besides, where σ is made of them
    const int64_t of_R = size.residual == Residual::scaled ? r : 0;
    const int64_t summed =
        linalg::orthonormalize_elements(r, shape.n, kMethodOfRight, oversample, shape.computing) + of_R;
    add(cost.cols, {count * summed, ring(2 * count * summed * fp64, layout.cols)});
  }
  cost.operations +=
      count * linalg::orthonormalize_operations(shape.cols, r, shape.n, kMethodOfRight, oversample, shape.computing);
  const at::ScalarType operand = operand_dtype(shape, options);
  const at::ScalarType sums = linalg::sum_dtype_on_gpu(operand, precision_asked(options));
  cost.temporary_bytes +=
      count * linalg::orthonormalize_bytes_on_gpu(shape.cols, r, kMethodOfRight, {shape.computing, operand, sums});
}

}  // namespace torchdion::algorithms
