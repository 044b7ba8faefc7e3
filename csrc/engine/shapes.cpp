#include "engine/shapes.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "comm/line.h"
#include "engine/checks.h"
#include "engine/words.h"

namespace torchdion::engine {

namespace {

bool is_same_line(const Axis& a, const Axis& b) {
  if (a.absent() || b.absent()) return a.absent() == b.absent();
  return a.line == b.line || (a.line->group == b.line->group && a.line->options.chunks == b.line->options.chunks &&
                              a.line->options.places == b.line->options.places);
}

// The sizes [stack..., rows, cols] of this rank's piece of a stack of matrices.
std::vector<int64_t> piece_sizes(std::vector<int64_t> whole, const Axis& batch, const Axis& rows, const Axis& cols) {
  whole.end()[-2] = rows.piece(whole.end()[-2]).size;
  whole.back() = cols.piece(whole.back()).size;
  if (!batch.absent()) whole.front() = batch.piece(whole.front()).size;
  return whole;
}

void check_piece(const char* what, at::IntArrayRef whole, at::IntArrayRef sizes, at::IntArrayRef expected) {
  TORCH_CHECK_VALUE(sizes == expected, prefix(), "this rank's piece of a ", what, " of shape ", whole,
                    " must be of shape ", expected, " as its layout says, got ", sizes);
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

ParameterShape shape_of(const DionGroup& group, std::size_t i) {
  const at::Tensor &X = group.X[i], &Q = group.Q[i];
  const Layout& layout = layout_of(group.layouts, i);
  const at::IntArrayRef sizes = whole_sizes(X, layout);
  const at::IntArrayRef whole_Q = group.whole_Q.empty() ? Q.sizes() : at::IntArrayRef(group.whole_Q[i]);
  check_Q_sizes(X, sizes, whole_Q, group.form);
  const std::vector<int64_t> matrices = matrix_sizes(sizes, group.form);
  ParameterShape shape{{matrices.begin(), matrices.end() - 2}, matrices.end()[-2], matrices.back(), whole_Q.back()};
  shape.right = shape.m == shape.n ? group.orientation == Orientation::right : whole_Q.end()[-2] == shape.m;
  if (layout.is_local()) return shape;
  TORCH_CHECK_NOT_IMPLEMENTED(group.form.blocks == 1 || (group.form.fan_in_first ? layout.cols : layout.rows).absent(),
                              prefix(), "a parameter of ", group.form.blocks,
                              " fused matrices (blocks) must not be cut along them, got shape ", sizes);
  check_piece("parameter's matrices", matrices, matrix_sizes(X.sizes(), group.form),
              piece_sizes(matrices, layout.batch, layout.rows, layout.cols));
  const Orientation orientation = shape.right ? Orientation::right : Orientation::left;
  check_piece("state Q", whole_Q, Q.sizes(), piece_of_Q(whole_Q.vec(), orientation, layout));
  return shape;
}

std::vector<int64_t> piece_of_Q(const std::vector<int64_t>& whole_Q, Orientation orientation, const Layout& layout) {
  const Layout of_Q = orientation == Orientation::right ? layout : layout.t();
  return piece_sizes(whole_Q, layout.batch, of_Q.rows, of_Q.cols);
}

bool compresses(int64_t m, int64_t n, int64_t r, const Layout& layout) {
  const int64_t rows = layout.rows.largest_piece(m), cols = layout.cols.largest_piece(n);
  return (rows + cols) * r < rows * cols;
}

bool is_same(const Layout& a, const Layout& b) {
  return is_same_line(a.rows, b.rows) && is_same_line(a.cols, b.cols) && is_same_line(a.replicas, b.replicas) &&
         is_same_line(a.batch, b.batch) && a.has_averaged_copies == b.has_averaged_copies;
}

}  // namespace torchdion::engine
