#include "algorithms/weight_update.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "algorithms/shared.h"
#include "linalg/axpby.h"
#include "linalg/backend.h"
#include "linalg/gemm.h"
#include "linalg/noise.h"
#include "linalg/rates.h"
#include "linalg/residual.h"
#include "linalg/rows.h"

namespace torchdion::algorithms {

using linalg::Matrices;

namespace {

at::Tensor device_factors(const Batch& batch) {
  return linalg::device_factors(batch.factors, batch.workspace.options());
}

// Those of the update and of the weights: numbers, or on the device.
std::pair<linalg::Factor, linalg::Factor> factors_of(const Batch& batch) {
  const linalg::FactorRule& rule = batch.factors;
  if (!rule.multipliers.defined() && !batch.frozen.left_out) {
    const linalg::UpdateFactors all = linalg::update_factors(rule.shape_factor, rule.rates, /*left_out=*/false);
    return {all.update, all.keep};
  }
  const at::Tensor all = device_factors(batch);
  return {linalg::Factor(all.narrow(0, 0, 1)), linalg::Factor(all.narrow(0, 1, 1))};
}

// True where weights are moved by the update itself, which is put together first: they decay by its signs, it has signs
// of its own, or weights are rounded to 16 bits, which they should be only once.
bool needs_update(const BatchShape& shape, std::optional<Residual> residual, const Options& options) {
  const bool rounds_twice = residual == Residual::scaled && c10::elementSize(shape.parameter) == 2;
  return decay_asked(options) != linalg::Decay::all || residual == Residual::sign || rounds_twice;
}

at::ScalarType dtype_of_B(const BatchShape& shape, const IterationSize& size, at::ScalarType momentum,
                          const Options& options) {
  return size.apart ? operand_dtype(shape, options) : momentum;
}

// True where a GPU moves weights by a residual in one pass over them: move_by_signs_(), move_by_scaled_(). That of
// signs writes momenta with error feedback. Matrices that do not lie in memory as their momenta do are left out,
// wherever there may be any.
bool takes_one_pass(const BatchShape& shape, const IterationSize& size, at::ScalarType momentum,
                    const Options& options) {
  if (!size.residual) return false;
  const bool writes_momenta = size.residual == Residual::sign && options.flag("error_feedback");
  const at::ScalarType operand = operand_dtype(shape, options);
  return size.r % 8 == 0 && shape.parameter == at::kFloat && (!writes_momenta || momentum == at::kFloat) &&
         dtype_of_B(shape, size, momentum, options) == operand &&
         linalg::moves_in_one_pass(shape.device, operand, precision_asked(options));
}

// Entries of updates that are put together at once: what a CPU's caches hold, or what keeps a GPU busy.
int64_t entries_at_once(const BatchShape& shape) {
  const int64_t entries = shape.device.is_cpu() ? int64_t{1} << 20 : int64_t{1} << 24;
  return std::min(shape.numel, std::max({entries, shape.rows, shape.cols}));
}

// Operands of updates and residuals, turned so that the rows of one of the matrices are contiguous.
struct Operands {
  Matrices X, B, M, update_left, update_right, rest_left, rest_right;  // left · rightᵀ
  linalg::SignFloor floor = {};                                        // of signs, where there are any

  Operands(const Batch& batch, const PowerIteration& iteration, const Matrices& momentum, const Matrices& like)
      : X(batch.X),
        B(iteration.B),
        M(momentum),
        update_left(iteration.factors.P),
        update_right(iteration.factors.update),
        rest_left(iteration.factors.P),
        rest_right(iteration.factors.R) {
    if (like.row_major()) return;
    for (Matrices* matrices : {&X, &B, &M}) *matrices = matrices->t();
    std::swap(update_left, update_right);
    std::swap(rest_left, rest_right);
  }

  // Rows of some of the matrices.
  Operands part(int64_t begin, int64_t end, int64_t first, int64_t rows) const {
    Operands part = *this;
    for (Matrices* matrices : {&part.X, &part.B, &part.M, &part.update_left, &part.rest_left}) {
      *matrices = matrices->slice(begin, end).narrow(first, rows);
    }
    for (Matrices* matrices : {&part.update_right, &part.rest_right}) *matrices = matrices->slice(begin, end);
    if (floor.left.defined()) {
      part.floor.left = floor.left.slice(0, begin, end).narrow(1, first, rows);
      part.floor.right = floor.right.slice(0, begin, end);
    }
    return part;
  }
};

// Calls f(part, room for its update, the first of its matrices, how many) for parts that the end of the workspace
// holds, or, where it was to be one pass, memory of their own.
template <class F>
void for_each_part(const Batch& batch, const PowerIteration& iteration, const Operands& all, const Options& options,
                   const F& f) {
  const int64_t room = entries_at_once(batch.shape), count = all.X.count(), rows = all.X.rows, cols = all.X.cols;
  if (all.X.numel() == 0) return;  // a rank may have none of a matrix's rows or columns
  const int64_t height = std::clamp<int64_t>(room / cols, 1, rows);
  const int64_t at_once = height == rows ? std::clamp<int64_t>(room / (rows * cols), 1, count) : 1;
  const int64_t numel = at_once * height * cols;
  const at::Tensor place = takes_one_pass(batch.shape, iteration.size, all.M.dtype, options)
                               ? at::empty({numel}, batch.workspace.options())
                               : batch.workspace.narrow(0, batch.workspace.numel() - numel, numel);
  Matrices U(place.view({at_once, height, cols}));
  linalg::upload({&U});
  for (int64_t i = 0; i < count; i += at_once) {
    const int64_t many = std::min(at_once, count - i);
    for (int64_t row = 0; row < rows; row += height) {
      const int64_t high = std::min(height, rows - row);
      Operands part = all.part(i, i + many, row, high);
      Matrices of_part = U.slice(0, many).narrow(0, high);
      if (high != rows) {  // its pointers are others
        linalg::upload({&part.X, &part.B, &part.M, &part.update_left, &part.update_right, &part.rest_left,
                        &part.rest_right, &of_part});
      }
      f(part, of_part, i, many);
    }
  }
}

// The rule of the batch, for its matrices from this one on.
linalg::DirectionRule rule_from(const Batch& batch, int64_t first) {
  linalg::DirectionRule rule = batch.direction;
  rule.frozen = batch.frozen.from(first);
  return rule;
}

// P Rᵀ is a sum of r products of rounded numbers: their roundings add up to about 1/√r of ‖P_i‖ ‖R_j‖ times one of
// them. P lies as far from what it would be in exact arithmetic, some times over where L Q is ill-conditioned.
linalg::SignFloor floor_of_signs(const PowerIteration& iteration, const Operands& of) {
  const auto noise = [&](Precision precision) {
    return linalg::rounding_noise(iteration.shape.computing, iteration.shape.n, precision);
  };
  const double asked = noise(iteration.orthonormalize.precision);
  const double of_products = 16 * asked / std::sqrt(static_cast<double>(iteration.size.r));
  return {asked, of_products + 4 * noise(Precision::highest), linalg::row_sums(of.rest_left, linalg::RowSum::squares),
          linalg::row_sums(of.rest_right, linalg::RowSum::squares)};
}

// Signs get twice the Frobenius norm of what an m×n matrix with orthonormal rows or columns has beside r of its
// directions: in the study of residuals they end lower than at once that norm at d/4, and than at four times at d/16.
double weight_of_signs(int64_t m, int64_t n, int64_t r) {
  return 2 * std::sqrt(static_cast<double>(std::min(m, n) - r) / (static_cast<double>(m) * static_cast<double>(n)));
}

// Moves weights by a scaled residual where the device does it in one pass over them, and says whether it did.
bool move_in_one_pass_(const Batch& batch, const PowerIteration& iteration, const Options& options) {
  if (!takes_one_pass(batch.shape, iteration.size, iteration.B.dtype, options)) return false;
  const Operands all(batch, iteration, iteration.B, batch.X);
  return linalg::move_by_scaled_({all.X, all.B, all.update_left, all.update_right, device_factors(batch),
                                  iteration.residual_scales, batch.direction});
}

// Moves weights by updates that are put together, part by part.
void move_by_updates_(const Batch& batch, const PowerIteration& iteration, const Options& options) {
  const at::Tensor factors = device_factors(batch);
  const at::Tensor &scales = iteration.residual_scales, one = at::ones({2}, batch.workspace.options());
  for_each_part(batch, iteration, Operands(batch, iteration, iteration.B, batch.X), options,
                [&](const Operands& part, const Matrices& U, int64_t first, int64_t count) {
                  linalg::gemm_(U, part.update_left, part.update_right.t(), 1, 0, iteration.precision);
                  if (scales.defined()) {
                    linalg::axpby_(U, part.B, one, {}, {}, scales.narrow(0, first, count));
                  }
                  linalg::axpby_(part.X, U, factors, rule_from(batch, first));
                });
}

}  // namespace

void update_weights_(const Batch& batch, const PowerIteration& iteration, const Options& options) {
  if (move_in_one_pass_(batch, iteration, options)) return;
  if (needs_update(batch.shape, iteration.size.residual, options)) return move_by_updates_(batch, iteration, options);
  const Matrices &X = batch.X, &P = iteration.factors.P, Qt = iteration.factors.update.t();
  const auto [of_update, of_weights] = factors_of(batch);
  if (iteration.residual_scales.defined()) {  // L, and then what the factors change of that: P is zero where X stays
    linalg::axpby_(X, iteration.B, device_factors(batch), batch.direction, {}, iteration.residual_scales);
    linalg::gemm_(X, P, Qt, of_update, of_update.device.defined() ? linalg::Factor(at::ones_like(of_update.device)) : 1,
                  iteration.precision);
    return;
  }
  const at::Tensor& unchanged = batch.unchanged;
  if (!unchanged.defined()) {
    linalg::gemm_(X, P, Qt, of_update, of_weights, iteration.precision);
    return;
  }
  // A product has one factor for all its matrices: where some stay, each is a product of its own.
  const at::TensorOptions of_numbers = unchanged.options().dtype(P.dtype);
  const auto number = [&](const linalg::Factor& factor) {
    return factor.device.defined() ? factor.device : at::full({1}, factor.value, of_numbers);
  };
  const at::Tensor update = number(of_update);
  const at::Tensor keep = at::where(unchanged.ne(0), at::ones({1}, of_numbers), number(of_weights));
  for (int64_t i = 0; i < X.count(); ++i) {
    linalg::gemm_(X.slice(i, i + 1), P.slice(i, i + 1), Qt.slice(i, i + 1), linalg::Factor(update),
                  linalg::Factor(keep.narrow(0, i, 1)), iteration.precision);
  }
}

void update_weights_by_signs_(const Batch& batch, const PowerIteration& iteration, const Matrices& M, double feedback,
                              const Options& options) {
  const at::TensorOptions numbers = batch.workspace.options();
  const at::Tensor factors = device_factors(batch);
  const double weight = weight_of_signs(iteration.shape.m, iteration.shape.n, iteration.size.r);
  const bool is_in_place = iteration.B.data == M.data, is_apart = feedback != 0 && !is_in_place;
  if (takes_one_pass(batch.shape, iteration.size, M.dtype, options)) {
    const Operands all(batch, iteration, M, batch.X);
    if (linalg::move_by_signs_({all.X, all.M, all.B, all.rest_left, all.rest_right, all.update_left, all.update_right,
                                factors, batch.direction, weight, feedback, floor_of_signs(iteration, all)})) {
      return;
    }
  }
  const at::Tensor subtract = at::ones({2}, numbers);
  if (is_apart) subtract.narrow(0, 0, 1).fill_(-feedback);
  Operands all(batch, iteration, M, iteration.B);
  all.floor = floor_of_signs(iteration, all);
  for_each_part(batch, iteration, all, options, [&](const Operands& part, const Matrices& U, int64_t first, int64_t) {
    linalg::gemm_(U, part.rest_left, part.rest_right.t(), 1, 0, iteration.precision);
    if (is_apart) linalg::axpby_(part.M, U, subtract);
    linalg::take_signs_(U, part.B, is_in_place ? feedback : 0, part.floor);
    linalg::gemm_(U, part.update_left, part.update_right.t(), 1, weight, iteration.precision);
    linalg::axpby_(part.X, U, factors, rule_from(batch, first));
  });
}

int64_t workspace_of_update(const BatchShape& shape, const IterationSize& size, at::ScalarType momentum,
                            const Options& options) {
  if (takes_one_pass(shape, size, momentum, options)) return 0;
  return needs_update(shape, size.residual, options) ? entries_at_once(shape) : 0;
}

int64_t memory_bytes_of_update(const BatchShape& shape, const IterationSize& size, at::ScalarType momentum,
                               const Options& options) {
  const int64_t weight = element_size(shape.parameter), update = element_size(shape.computing);
  const int64_t of_B = element_size(dtype_of_B(shape, size, momentum, options));
  if (takes_one_pass(shape, size, momentum, options)) return shape.numel * (2 * weight + of_B);
  if (size.residual == Residual::sign) {  // P Rᵀ: written, read; signs: written, read; the update: written, read
    return shape.numel * (2 * weight + of_B + (size.apart ? 7 : 6) * update);
  }
  const bool has_residual = size.residual.has_value();
  if (needs_update(shape, size.residual, options)) {
    return shape.numel * (2 * weight + 2 * update + (has_residual ? 2 * update + of_B : 0));
  }
  return shape.numel * (2 * weight + (has_residual ? 2 * weight + of_B : 0));
}

}  // namespace torchdion::algorithms
