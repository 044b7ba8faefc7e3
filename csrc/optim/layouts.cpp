#include "optim/layouts.h"

#include <unordered_set>

#include "engine/checks.h"
#include "engine/shapes.h"
#include "engine/state.h"
#include "optim/names.h"
#include "optim/parameters.h"

namespace torchdion::optim {

namespace {

void check_cut(const Cut& cut, const at::Tensor& param, const DionOptions& options, const std::string& name) {
  TORCH_CHECK_VALUE(cut.dim >= 0, "torchdion::Dion: ", name, " of shape ", param.sizes(), " has no ", cut.side,
                    " that its layout could cut");
  if (algorithm_of(param, options) != Algorithm::dion) return;
  const int64_t batch_dims = options.batch_dims().value_or(0);
  TORCH_CHECK_VALUE(param.dim() == batch_dims + 2 || cut.dim <= batch_dims, "torchdion::Dion: ", name, " of shape ",
                    param.sizes(), " is a convolution (batch_dims ", batch_dims, "), which may be cut on dimension ",
                    batch_dims, ", got a layout that cuts its ", cut.side);
  TORCH_CHECK_VALUE(options.blocks() == 1 || cut.dim != batch_dims, "torchdion::Dion: ", name, " of shape ",
                    param.sizes(), " has blocks(", options.blocks(), ") along its rows, which may not be cut");
}

// A rank's place on two axes of one group would be the same.
void check_distinct(const Layout& layout, const std::string& name) {
  std::unordered_set<const void*> lines;
  for (const Axis* axis : {&layout.rows, &layout.cols, &layout.batch, &layout.replicas}) {
    TORCH_CHECK_VALUE(axis->absent() || lines.insert(axis->line.get()).second, "torchdion::Dion: the layout of ", name,
                      " must have another axis for each of rows, cols, replicas and batch, got ", axis->name(),
                      " twice");
  }
}

void add(Traffic& total, const Traffic& more) {
  total.calls += more.calls;
  total.elements += more.elements;
  total.bytes += more.bytes;
}

}  // namespace

std::array<Cut, 3> cuts_of(const at::Tensor& param, const Layout& layout, const DionOptions& options) {
  const int64_t first = options.batch_dims().value_or(0);
  const bool swapped = options.fan_in_first() && algorithm_of(param, options) == Algorithm::dion;
  std::array<Cut, 3> cuts{{{&layout.rows, "rows", swapped ? first + 1 : first},
                           {&layout.cols, "columns", swapped ? first : first + 1},
                           {&layout.batch, "stack", first > 0 ? 0 : -1}}};
  for (Cut& cut : cuts) {
    if (cut.dim >= param.dim()) cut.dim = -1;
  }
  return cuts;
}

const Layout& layout_of(const Layouts& layouts, const at::Tensor& param) {
  static const Layout whole;
  const auto found = layouts.find(param.unsafeGetTensorImpl());
  return found == layouts.end() ? whole : found->second;
}

void check_layout(const at::Tensor& param, const Layout& layout, const DionOptions& options, const std::string& name) {
  const at::IntArrayRef whole = engine::whole_sizes(param, layout);
  const bool is_cut = !layout.rows.absent() || !layout.cols.absent() || !layout.batch.absent();
  TORCH_CHECK_VALUE(static_cast<int64_t>(whole.size()) == param.dim() && !(is_cut && layout.sizes.empty()),
                    "torchdion::Dion: the layout of ", name, " must have the ", param.dim(),
                    " sizes of the whole parameter, got ", at::IntArrayRef(layout.sizes));
  check_distinct(layout, name);
  std::vector<int64_t> piece = whole.vec();
  for (const Cut& cut : cuts_of(param, layout, options)) {
    if (cut.axis->absent()) continue;
    check_cut(cut, param, options, name);
    piece[cut.dim] = cut.axis->piece(whole[cut.dim]).size;
  }
  TORCH_CHECK_VALUE(param.sizes() == piece, "torchdion::Dion: ", name, " must be this rank's piece of shape ",
                    at::IntArrayRef(piece), " of a parameter of shape ", whole, " as its layout says, got ",
                    param.sizes());
}

void check_orthonormalize(const Layout& layout, Orientation orientation, const DionOptions& options,
                          const std::string& name) {
  const bool right = orientation == Orientation::right;
  const bool allowed = options.orthonormalize() != Orthonormalize::qr || (right ? layout.cols : layout.rows).absent();
  TORCH_CHECK_VALUE(allowed, "torchdion::Dion: orthonormalize must be Orthonormalize::automatic, ",
                    "Orthonormalize::rcqr or Orthonormalize::cholesky_qr for ", name, ", whose ",
                    right ? "columns" : "rows", " are cut (", shown(orientation), "), got Orthonormalize::qr");
}

std::vector<int64_t> whole_Q(const at::Tensor& param, const at::Tensor& Q, const Layout& layout,
                             const DionOptions& options, const std::string& name) {
  const at::IntArrayRef sizes = engine::whole_sizes(param, layout);
  const engine::MatrixForm form = form_of(options);
  const bool right = options.orientation() == Orientation::right;
  std::vector<int64_t> expected;
  for (const Orientation orientation :
       {right ? Orientation::right : Orientation::left,  // a loaded Q may be of the other
        right ? Orientation::left : Orientation::right}) {
    std::vector<int64_t> whole = engine::sizes_of_Q(
        sizes, form, {orientation, options.rank_fraction(), options.rank_multiple_of(), options.seed()});
    const bool has_all_columns = (orientation == Orientation::right ? layout.cols : layout.rows).absent();
    if (has_all_columns && Q.dim() > 0) whole.back() = Q.size(-1);  // any rank; else that of the options
    std::vector<int64_t> piece = engine::piece_of_Q(whole, orientation, layout);
    if (Q.sizes() == piece) {
      engine::check_Q_sizes(param, sizes, whole, form);
      return whole;
    }
    if (expected.empty()) expected = std::move(piece);
  }
  TORCH_CHECK_VALUE(false, "torchdion::Dion: the state Q of ", name, " must be this rank's piece of shape ",
                    at::IntArrayRef(expected), " as its layout says, got ", Q.sizes());
}

std::map<std::string, AxisTraffic> traffic_of(const Layouts& layouts) {
  std::map<std::string, AxisTraffic> traffic;
  std::unordered_set<const void*> lines;
  for (const auto& [param, layout] : layouts) {
    for (const Axis* axis : {&layout.rows, &layout.cols, &layout.replicas, &layout.batch}) {
      if (axis->absent() || !lines.insert(axis->line.get()).second) continue;
      const AxisTraffic carried = axis->traffic();
      AxisTraffic& total = traffic[axis->name()];
      add(total.all_reduce, carried.all_reduce);
      add(total.reduce_scatter, carried.reduce_scatter);
      add(total.all_gather, carried.all_gather);
      add(total.completion, carried.completion);
      add(total.agreement, carried.agreement);
    }
  }
  return traffic;
}

}  // namespace torchdion::optim
