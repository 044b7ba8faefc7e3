#include "engine/shapes.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "comm/line.h"
#include "engine/checks.h"
#include "engine/cuts.h"
#include "engine/state.h"
#include "words.h"

namespace torchdion::engine {

using algorithms::StateShape;

namespace {

bool is_same_line(const Axis& a, const Axis& b) {
  if (a.absent() || b.absent()) return a.absent() == b.absent();
  return a.line == b.line || (a.line->group == b.line->group && a.line->options.chunks == b.line->options.chunks &&
                              a.line->options.pieces == b.line->options.pieces);
}

void check_piece(const std::string& what, at::IntArrayRef whole, at::IntArrayRef sizes, at::IntArrayRef expected) {
  TORCH_CHECK_VALUE(sizes == expected, prefix(), "this rank's piece of a ", what, " of shape ", whole,
                    " must be of shape ", expected, " as its layout says, got ", sizes);
}

// Of a parameter that is cut.
void check_matrices(const at::Tensor& X, const std::vector<int64_t>& whole, const MatrixForm& form,
                    const algorithms::Options& options, const Layout& layout) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      form.blocks == 1 || (form.fan_in_first ? layout.cols : layout.rows).absent(), prefix(), "a parameter of ",
      form.blocks, " fused matrices (blocks) must not be cut along them, got shape ", whole_sizes(X, layout));
  const Cuts cuts = cuts_of_matrices(static_cast<int64_t>(whole.size()), options);
  check_piece("parameter's matrices", whole, matrix_sizes(X.sizes(), form), piece_sizes(whole, cuts, layout));
}

}  // namespace

const Layout& layout_of(const std::vector<Layout>& layouts, std::size_t i) {
  static const Layout whole;
  return layouts.empty() ? whole : layouts[i];
}

at::IntArrayRef whole_sizes(const at::Tensor& X, const Layout& layout) {
  return layout.sizes.empty() ? X.sizes() : at::IntArrayRef(layout.sizes);
}

int64_t whole_numel(const at::Tensor& X, const Layout& layout) {
  const at::IntArrayRef sizes = whole_sizes(X, layout);
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
}

bool is_right(at::IntArrayRef factor, at::IntArrayRef sizes, const algorithms::Options& options) {
  const std::vector<int64_t> matrices = matrix_sizes(sizes, form_of(options));
  const int64_t m = matrices.end()[-2], n = matrices.back();
  return m == n ? options.text("orientation") == "right" : factor.end()[-2] == m;
}

ParameterShape shape_of(const Group& group, std::size_t i) {
  const at::Tensor& X = group.X[i];
  const Layout& layout = layout_of(group.layouts, i);
  const at::IntArrayRef sizes = whole_sizes(X, layout);
  const MatrixForm form = form_of(group.options);
  const std::vector<int64_t> matrices = matrix_sizes(sizes, form);
  ParameterShape shape{{matrices.begin(), matrices.end() - 2}, matrices.end()[-2], matrices.back()};
  at::IntArrayRef factor;
  if (const int64_t k = group.factor(); k >= 0) {
    const at::Tensor& own = group.states[k][i];
    factor = group.whole_factors.empty() ? own.sizes() : at::IntArrayRef(group.whole_factors[i]);
    check_factor_sizes(X, sizes, factor, form, title_of(group.algorithm->states[k]));
    shape.r = factor.back();
    shape.right = is_right(factor, sizes, group.options);
  }
  if (!layout.is_local()) check_matrices(X, matrices, form, group.options, layout);
  for (std::size_t k = 0; k < group.states.size(); ++k) {
    const algorithms::State& state = group.algorithm->states[k];
    const at::Tensor& own = group.states[k][i];
    if (state.shape == StateShape::like_parameter) {
      check_state_sizes(X, X.sizes(), own, title_of(state));
      continue;
    }
    if (state.shape == StateShape::factor && layout.is_local()) continue;  // checked above
    const std::vector<int64_t> whole =
        state.shape == StateShape::factor ? factor.vec() : whole_state_sizes(state, sizes, group.options);
    const Cuts cuts =
        cuts_of_state(state, static_cast<int64_t>(whole.size()),
                      cuts_of_matrices(static_cast<int64_t>(matrices.size()), group.options), shape.right);
    check_piece(title_of(state), whole, own.sizes(), piece_sizes(whole, cuts, layout));
  }
  return shape;
}

bool decouples(const algorithms::Algorithm& algorithm, int64_t m, int64_t n, int64_t r, const Layout& layout) {
  if (!algorithm.decouples) return false;
  return algorithm.decouples(layout.rows.largest_piece(m), layout.cols.largest_piece(n), r);
}

std::vector<std::string> decoupled_states(const algorithms::Algorithm& algorithm, at::IntArrayRef sizes, int64_t r,
                                          const algorithms::Options& group, const Layout& layout) {
  std::vector<std::string> decoupled;
  if (layout.replicas.absent() || !algorithm.takes_matrices()) return decoupled;
  const std::vector<int64_t> matrices = matrix_sizes(sizes, form_of(group));
  if (!decouples(algorithm, matrices.end()[-2], matrices.back(), r, layout)) return decoupled;
  for (const algorithms::State& state : algorithm.states) {
    if (state.holder == algorithms::Holder::each_replica) decoupled.emplace_back(state.name);
  }
  return decoupled;
}

bool is_same(const Layout& a, const Layout& b) {
  return is_same_line(a.rows, b.rows) && is_same_line(a.cols, b.cols) && is_same_line(a.replicas, b.replicas) &&
         is_same_line(a.copies, b.copies) && is_same_line(a.batch, b.batch) &&
         a.has_averaged_copies == b.has_averaged_copies;
}

}  // namespace torchdion::engine
