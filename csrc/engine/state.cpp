#include "engine/state.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_qr.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <cmath>

#include "engine/cuts.h"
#include "engine/matrix_form.h"
#include "linalg/sketch.h"

namespace torchdion::engine {

using algorithms::Options;
using algorithms::StateShape;

int64_t rank_of(int64_t m, int64_t n, double rank_fraction, int64_t rank_multiple_of) {
  const int64_t largest = std::min(m, n);
  const double exact = rank_fraction * static_cast<double>(largest);
  const int64_t rank = std::max<int64_t>(1, static_cast<int64_t>(std::ceil(exact - 1e-9 * exact)));
  if (rank_multiple_of >= largest) return largest;
  return std::min((rank + rank_multiple_of - 1) / rank_multiple_of * rank_multiple_of, largest);
}

std::string title_of(const algorithms::State& state) { return std::string("state ").append(state.name); }

bool starts_right(at::IntArrayRef sizes, const Options& group) {
  const std::string_view orientation = group.text("orientation");
  if (orientation != "short") return orientation == "right";
  const std::vector<int64_t> matrices = matrix_sizes(sizes, form_of(group));
  return matrices.end()[-2] >= matrices.back();
}

std::vector<int64_t> whole_state_sizes(const algorithms::State& state, at::IntArrayRef sizes, const Options& group) {
  if (state.shape == StateShape::like_parameter) return sizes.vec();
  const MatrixForm form = form_of(group);
  if (state.shape == StateShape::rows) {
    std::vector<int64_t> rows = matrix_sizes(sizes, {form.batch_dims, 1, form.fan_in_first});
    rows.back() = 1;
    return rows;
  }
  std::vector<int64_t> whole = matrix_sizes(sizes, form);
  const int64_t m = whole.end()[-2], n = whole.back();
  whole.end()[-2] = starts_right(sizes, group) ? m : n;
  whole.back() = m * n == 0 ? 0 : rank_of(m, n, group.number(state.rank_option), group.integer("rank_multiple_of"));
  return whole;
}

namespace {

// Columns of a fresh Q, from `column` on.
void fill_with_start(const at::Tensor& stack, const linalg::RandomMatrix& random, int64_t row, int64_t column,
                     int64_t whole_rows) {
  const c10::DeviceGuard guard(stack.device());
  linalg::sketch_(stack, random, row, column, 1 / std::sqrt(static_cast<double>(whole_rows)));
}

bool is_right_factor(const algorithms::State& state, at::IntArrayRef sizes, const Options& group) {
  return state.shape == StateShape::factor && starts_right(sizes, group);
}

}  // namespace

std::vector<int64_t> piece_of_state_sizes(const algorithms::State& state, at::IntArrayRef sizes, at::IntArrayRef local,
                                          const Options& group, const Layout& layout) {
  if (state.shape == StateShape::like_parameter) return local.vec();
  const std::vector<int64_t> whole = whole_state_sizes(state, sizes, group);
  const auto dims = static_cast<int64_t>(whole.size());
  const Cuts of_param = cuts_of_matrices(dims, group);
  return piece_sizes(whole, cuts_of_state(state, dims, of_param, is_right_factor(state, sizes, group)), layout);
}

at::Tensor start_of(const algorithms::State& state, at::IntArrayRef sizes, at::IntArrayRef local, const Options& group,
                    int64_t parameter, at::TensorOptions options, const Layout& layout) {
  const std::vector<int64_t> piece = piece_of_state_sizes(state, sizes, local, group, layout);
  if (state.start == algorithms::Start::zeros) return at::zeros(piece, options);
  const at::Tensor Q = at::empty(piece, options);
  if (Q.numel() == 0) return Q;
  const std::vector<int64_t> whole = whole_state_sizes(state, sizes, group);
  const Layout of_Q = is_right_factor(state, sizes, group) ? layout : layout.t();
  const int64_t row = of_Q.rows.piece(whole.end()[-2]).begin, column = of_Q.cols.piece(whole.back()).begin;
  const at::Tensor stack = Q.view({-1, Q.size(-2), Q.size(-1)});
  const int64_t first = layout.batch.piece(whole.front()).begin * (stack.size(0) / Q.size(0));  // of the whole stack
  const auto random = linalg::RandomMatrix::start(group.integer("seed"), parameter, first, state.draw);
  fill_with_start(stack, random, row, column, whole.end()[-2]);
  return Q;
}

at::Tensor resized_factor(const algorithms::State& state, const at::Tensor& Q, int64_t r, int64_t seed,
                          int64_t parameter) {
  const int64_t rows = Q.size(-2), kept = std::min(Q.size(-1), r);
  const at::Tensor leading = Q.narrow(-1, 0, kept);
  if (kept == r) return leading.contiguous();
  const at::Tensor stack = leading.reshape({-1, rows, kept}).to(at::kDouble);
  const at::Tensor fresh = at::empty({stack.size(0), rows, r - kept}, stack.options());
  fill_with_start(fresh, linalg::RandomMatrix::start(seed, parameter, 0, state.draw), 0, kept, rows);
  const at::Tensor basis = std::get<0>(at::linalg_qr(at::cat({stack, fresh}, -1)));
  std::vector<int64_t> sizes = Q.sizes().vec();
  sizes.back() = r - kept;
  return at::cat({leading, basis.narrow(-1, kept, r - kept).reshape(sizes).to(Q.scalar_type())}, -1);
}

}  // namespace torchdion::engine
