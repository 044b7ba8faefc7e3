#include "engine/cuts.h"

#include <c10/util/Exception.h>

#include <array>
#include <utility>

#include "comm/blocking.h"
#include "words.h"

namespace torchdion::engine {

namespace {

// The axes that cut a tensor, with its dimensions.
std::vector<std::pair<const Axis*, int64_t>> present(const Cuts& cuts, const Layout& layout) {
  std::vector<std::pair<const Axis*, int64_t>> all;
  const std::array<std::pair<const Axis*, int64_t>, 3> every{
      {{&layout.rows, cuts.rows}, {&layout.cols, cuts.cols}, {&layout.batch, cuts.batch}}};
  for (const auto& [axis, dim] : every) {
    if (!axis->absent() && dim >= 0) all.emplace_back(axis, dim);
  }
  return all;
}

}  // namespace

Cuts cuts_of_parameter(int64_t dims, const algorithms::Options& group) {
  const int64_t first = group.integer_or_zero("batch_dims");
  Cuts cuts{first < dims ? first : -1, first + 1 < dims ? first + 1 : -1, first > 0 && dims > 0 ? 0 : -1};
  const bool is_matrix = algorithms::algorithm_of(dims, group).takes_matrices();
  if (is_matrix && group.flag("fan_in_first")) std::swap(cuts.rows, cuts.cols);
  return cuts;
}

void check_cut(int64_t dim, at::IntArrayRef sizes, const algorithms::Options& group, const std::string& name) {
  const auto dims = static_cast<int64_t>(sizes.size());
  if (!algorithms::algorithm_of(dims, group).takes_matrices()) return;
  const int64_t batch_dims = group.integer_or_zero("batch_dims"), blocks = group.integer("blocks");
  const bool is_matrix = dims == batch_dims + 2;
  const bool is_allowed = dim == batch_dims || (is_matrix && dim == batch_dims + 1) || (batch_dims > 0 && dim == 0);
  const auto assigned = [](const char* option, int64_t value) {
    return algorithms::assigned(*algorithms::option(option), value);
  };
  TORCH_CHECK_VALUE(is_allowed, prefix(), name, " of shape ", sizes, " is a ",
                    dim < batch_dims ? "stack" : "convolution", " (", assigned("batch_dims", batch_dims),
                    "), which may be cut on dimension ", batch_dims > 0 ? "0 or " : "", batch_dims,
                    is_matrix ? c10::str(" or ", batch_dims + 1) : "", ", got a cut of dimension ", dim);
  TORCH_CHECK_VALUE(blocks == 1 || dim != batch_dims, prefix(), name, " of shape ", sizes, " has ",
                    assigned("blocks", blocks), " along its rows, which may not be cut, got a cut of dimension ", dim,
                    "; with ", assigned("blocks", 1), " it is one matrix");
}

Cuts cuts_of_matrices(int64_t dims, const algorithms::Options& group) {
  return {dims - 2, dims - 1, group.integer_or_zero("batch_dims") > 0 ? 0 : -1};
}

Cuts cuts_of_state(const algorithms::State& state, int64_t dims, const Cuts& parameter, bool right) {
  if (state.shape == algorithms::StateShape::like_parameter) return parameter;
  if (state.shape == algorithms::StateShape::rows) return {dims - 2, -1, parameter.batch};
  return right ? Cuts{dims - 2, dims - 1, parameter.batch} : Cuts{dims - 1, dims - 2, parameter.batch};
}

std::vector<int64_t> piece_sizes(at::IntArrayRef whole, const Cuts& cuts, const Layout& layout) {
  std::vector<int64_t> sizes = whole.vec();
  for (const auto& [axis, dim] : present(cuts, layout)) sizes[dim] = axis->piece(sizes[dim]).size;
  return sizes;
}

at::Tensor piece_of(const at::Tensor& whole, const Cuts& cuts, const Layout& layout) {
  at::Tensor piece = whole;
  for (const auto& [axis, dim] : present(cuts, layout)) piece = comm::piece_of(piece, dim, *axis);
  return piece;
}

at::Tensor gather(const at::Tensor& piece, at::IntArrayRef whole, const Cuts& cuts, const Layout& layout) {
  at::Tensor tensor = piece;
  for (const auto& [axis, dim] : present(cuts, layout)) tensor = comm::gather_pieces(tensor, dim, whole[dim], *axis);
  return tensor;
}

}  // namespace torchdion::engine
