#include "engine/shapes.h"

#include <algorithm>

#include "comm/line.h"
#include "engine/checks.h"
#include "engine/cuts.h"
#include "engine/state.h"
#include "engine/state_owners.h"
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

// Their sizes over all ranks, checked.
std::vector<at::IntArrayRef> whole_factors_of(const Group& group, std::size_t i) {
  const at::Tensor& X = group.X[i];
  const at::IntArrayRef sizes = whole_sizes(X, layout_of(group.layouts, i));
  std::vector<at::IntArrayRef> factors;
  for (const std::size_t k : algorithms::factors_of(*group.algorithm)) {
    const algorithms::State& state = group.algorithm->states[k];
    factors.push_back(group.whole_factors.empty() ? group.states[k][i].sizes()
                                                  : at::IntArrayRef(group.whole_factors[factors.size()][i]));
    check_factor_sizes([&] { return called(X); }, sizes, factors.back(), form_of(group.options), title_of(state));
    const at::IntArrayRef first = factors.front();
    TORCH_CHECK_VALUE(factors.back().slice(0, first.size() - 1) == first.slice(0, first.size() - 1), prefix(), "the ",
                      title_of(state), " of a parameter of shape ", sizes, " must have as many rows as its ",
                      title_of(group.algorithm->states[algorithms::factors_of(*group.algorithm).front()]), ", got ",
                      factors.back(), " and ", first);
  }
  return factors;
}

}  // namespace

const Layout& layout_of(const std::vector<Layout>& layouts, std::size_t i) {
  static const Layout whole;
  return layouts.empty() ? whole : layouts[i];
}

at::IntArrayRef whole_sizes(const at::Tensor& X, const Layout& layout) {
  return layout.sizes.empty() ? X.sizes() : at::IntArrayRef(layout.sizes);
}

bool is_right(at::IntArrayRef factor, at::IntArrayRef sizes, const algorithms::Options& options) {
  const std::vector<int64_t> matrices = matrix_sizes(sizes, form_of(options));
  const int64_t m = matrices.end()[-2], n = matrices.back();
  return m == n ? starts_right(sizes, options) : factor.end()[-2] == m;
}

ParameterShape shape_of(const Group& group, std::size_t i) {
  const at::Tensor& X = group.X[i];
  const Layout& layout = layout_of(group.layouts, i);
  const at::IntArrayRef sizes = whole_sizes(X, layout);
  const MatrixForm form = form_of(group.options);
  const std::vector<int64_t> matrices = matrix_sizes(sizes, form);
  ParameterShape shape;
  shape.stack.assign(matrices.begin(), matrices.end() - 2);
  shape.m = matrices.end()[-2];
  shape.n = matrices.back();
  const std::vector<at::IntArrayRef> factors = whole_factors_of(group, i);
  for (const at::IntArrayRef factor : factors) shape.ranks.push_back(factor.back());
  if (!factors.empty()) shape.right = is_right(factors.front(), sizes, group.options);
  if (!layout.is_local()) check_matrices(X, matrices, form, group.options, layout);
  auto factor = factors.begin();
  for (std::size_t k = 0; k < group.states.size(); ++k) {
    const algorithms::State& state = group.algorithm->states[k];
    const at::Tensor& own = group.states[k][i];
    if (state.shape == StateShape::like_parameter) {
      check_state_sizes(X, X.sizes(), own, title_of(state));
      continue;
    }
    const bool is_factor = state.shape == StateShape::factor;
    const std::vector<int64_t> whole = is_factor ? (factor++)->vec() : whole_state_sizes(state, sizes, group.options);
    if (is_factor && layout.is_local()) continue;  // checked above
    const Cuts cuts =
        cuts_of_state(state, static_cast<int64_t>(whole.size()),
                      cuts_of_matrices(static_cast<int64_t>(matrices.size()), group.options), shape.right);
    check_piece(title_of(state), whole, own.sizes(), piece_sizes(whole, cuts, layout));
  }
  return shape;
}

bool decouples(const algorithms::Algorithm& algorithm, int64_t m, int64_t n, std::span<const int64_t> ranks,
               const algorithms::Options& options, const Layout& layout) {
  if (!algorithm.decouples) return false;
  return algorithm.decouples(layout.rows.largest_piece(m), layout.cols.largest_piece(n), ranks, options);
}

std::vector<std::string> decoupled_states(const algorithms::Algorithm& algorithm, at::IntArrayRef sizes,
                                          std::span<const int64_t> ranks, const algorithms::Options& group,
                                          const Layout& layout) {
  std::vector<std::string> decoupled;
  if (layout.replicas.absent() || !algorithm.takes_matrices() || has_owners(group)) return decoupled;
  const std::vector<int64_t> matrices = matrix_sizes(sizes, form_of(group));
  if (!decouples(algorithm, matrices.end()[-2], matrices.back(), ranks, algorithms::options_of(algorithm, group),
                 layout))
    return decoupled;
  for (const algorithms::State& state : algorithm.states) {
    if (state.holder == algorithms::Holder::each_replica) decoupled.emplace_back(state.name);
  }
  return decoupled;
}

void check_layout(const algorithms::Algorithm& algorithm, at::IntArrayRef sizes,
                  const std::vector<std::vector<int64_t>>& factors, const algorithms::Options& options,
                  const Layout& layout, const std::string& name) {
  if (!algorithm.check_layout) return;
  std::vector<int64_t> ranks;
  for (const std::vector<int64_t>& factor : factors) ranks.push_back(factor.back());
  const bool right = is_right(factors.front(), sizes, options);
  const bool decoupled = !decoupled_states(algorithm, sizes, ranks, options, layout).empty();
  algorithm.check_layout(right ? layout.t() : layout, right, decoupled, options, name);
}

bool is_same(const Layout& a, const Layout& b) {
  return is_same_line(a.rows, b.rows) && is_same_line(a.cols, b.cols) && is_same_line(a.replicas, b.replicas) &&
         is_same_line(a.copies, b.copies) && is_same_line(a.batch, b.batch) &&
         a.has_averaged_copies == b.has_averaged_copies;
}

}  // namespace torchdion::engine
