#include "optim/layouts.h"

#include <algorithm>
#include <optional>
#include <unordered_set>
#include <utility>

#include "comm/line.h"
#include "engine/checks.h"
#include "engine/cuts.h"
#include "engine/shapes.h"
#include "engine/state.h"
#include "words.h"

namespace torchdion::optim {

namespace {

// A group is one axis of a layout: its ranks cannot cut two.
void check_distinct(const Layout& layout, const std::string& name) {
  std::unordered_set<const void*> lines;
  for (const Axis* axis : {&layout.rows, &layout.cols, &layout.batch, &layout.replicas, &layout.copies}) {
    TORCH_CHECK_VALUE(axis->absent() || lines.insert(axis->line.get()).second, prefix(), "the layout of ", name,
                      " must have another axis for each of rows, cols, replicas, copies and batch, got ", axis->name(),
                      " twice");
  }
}

// The sizes of the whole state of which this rank has a piece.
std::vector<int64_t> whole_sizes_of(const algorithms::State& state, const at::Tensor& piece,
                                    const engine::ParameterView& view, const algorithms::Options& options) {
  const at::IntArrayRef sizes = view.sizes();
  const engine::Cuts of_param = engine::cuts_of_parameter(view.param.dim(), options);
  algorithms::Options values = options;
  std::vector<int64_t> expected;
  for (const bool other : {false, true}) {  // a loaded factor may be of the other orientation
    if (other && state.shape != algorithms::StateShape::factor) break;
    const bool is_right = engine::starts_right(sizes, options) != other;
    values.set("orientation", std::string_view(is_right ? "right" : "left"));
    std::vector<int64_t> whole = engine::whole_state_sizes(state, sizes, values);
    const auto dims = static_cast<int64_t>(whole.size());
    const engine::Cuts cuts = engine::cuts_of_state(state, dims, of_param, is_right);
    const bool has_all_columns = cuts.cols == dims - 1 ? view.layout.cols.absent() : view.layout.rows.absent();
    if (state.shape == algorithms::StateShape::factor && has_all_columns && piece.dim() > 0) {
      whole.back() = piece.size(-1);  // any rank; else that of the options
    }
    std::vector<int64_t> own = engine::piece_sizes(whole, cuts, view.layout);
    if (piece.sizes() == own) {
      return whole;
    }
    if (expected.empty()) expected = std::move(own);
  }
  TORCH_CHECK_VALUE(false, prefix(), "the ", engine::title_of(state), " of ", view.name,
                    " must be this rank's piece of shape ", at::IntArrayRef(expected), " as its layout says, got ",
                    piece.sizes());
}

// The same of what an owner has; none: it is whole.
std::optional<std::vector<int64_t>> whole_of_part(const algorithms::State& state, const at::Tensor& saved,
                                                  const engine::ParameterView& view,
                                                  const algorithms::Options& options) {
  std::vector<int64_t> whole = engine::whole_state_sizes(state, view.sizes(), options);
  if (saved.sizes() == whole) return std::nullopt;
  const std::vector<int64_t> own = view.part->sizes_of(whole);
  TORCH_CHECK_VALUE(saved.sizes() == own, prefix(), "the ", engine::title_of(state), " of ", view.name,
                    " must be whole, of shape ", at::IntArrayRef(whole), ", or what this rank owns, of shape ",
                    at::IntArrayRef(own), ", got ", saved.sizes());
  return whole;
}

}  // namespace

void check_layout(const at::Tensor& param, const Layout& layout, const engine::GroupOptions& options,
                  const std::string& name) {
  const at::IntArrayRef whole = engine::whole_sizes(param, layout);
  const bool is_cut = !layout.rows.absent() || !layout.cols.absent() || !layout.batch.absent();
  TORCH_CHECK_VALUE(static_cast<int64_t>(whole.size()) == param.dim() && !(is_cut && layout.sizes.empty()), prefix(),
                    "the layout of ", name, " must have the ", param.dim(), " sizes of the whole parameter, got ",
                    at::IntArrayRef(layout.sizes));
  check_distinct(layout, name);
  const engine::Cuts cuts = engine::cuts_of_parameter(param.dim(), options.values);
  const auto check = [&](const Axis& axis, int64_t dim, const char* side) {
    if (axis.absent()) return;
    TORCH_CHECK_VALUE(dim >= 0, prefix(), name, " of shape ", param.sizes(), " has no ", side,
                      " that its layout could cut");
    engine::check_cut(dim, whole, options.values, name);
  };
  check(layout.rows, cuts.rows, "rows");
  check(layout.cols, cuts.cols, "columns");
  check(layout.batch, cuts.batch, "stack");
  const std::vector<int64_t> piece = engine::piece_sizes(whole, cuts, layout);
  TORCH_CHECK_VALUE(param.sizes() == piece, prefix(), name, " must be this rank's piece of shape ",
                    at::IntArrayRef(piece), " of a parameter of shape ", whole, " as its layout says, got ",
                    param.sizes());
}

void tell_pieces(std::vector<engine::SavedTensor>& saved, const engine::ParameterView& view,
                 const algorithms::Options& options) {
  using Told = std::pair<engine::SavedTensor*, const algorithms::State*>;
  std::vector<Told> own;
  for (engine::SavedTensor& one : saved) {
    const int64_t k = algorithms::index_of(*view.algorithm, one.name);
    if (k >= 0 && one.tensor.defined() && !one.tensor.is_nested()) own.emplace_back(&one, &view.algorithm->states[k]);
  }
  // One like the parameter tells it of all: a piece that is as large as the whole has whole others too.
  const bool are_whole = std::all_of(own.begin(), own.end(), [&](const Told& one) {
    return one.second->shape != algorithms::StateShape::like_parameter || one.first->tensor.sizes() == view.sizes();
  });
  for (const auto& [one, state] : own) {
    if (view.part) {
      one->whole = whole_of_part(*state, one->tensor, view, options);
    } else if (!are_whole && !view.layout.is_local()) {  // of which there are no pieces
      one->whole = whole_sizes_of(*state, one->tensor, view, options);
    }
  }
}

std::map<std::string, AxisTraffic> traffic_of(const Layouts& layouts) {
  std::map<std::string, AxisTraffic> traffic;
  std::unordered_set<const void*> lines;
  for (const auto& [param, layout] : layouts) {
    for (const Axis* axis : {&layout.rows, &layout.cols, &layout.replicas, &layout.copies, &layout.batch}) {
      if (axis->absent() || !lines.insert(axis->line.get()).second) continue;
      const AxisTraffic carried = axis->traffic();
      for (Traffic AxisTraffic::*kind :
           {&AxisTraffic::all_reduce, &AxisTraffic::reduce_scatter, &AxisTraffic::all_to_all, &AxisTraffic::all_gather,
            &AxisTraffic::completion, &AxisTraffic::agreement}) {
        comm::add(traffic[axis->name()].*kind, carried.*kind);
      }
    }
  }
  return traffic;
}

}  // namespace torchdion::optim
