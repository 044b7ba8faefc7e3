#include "optim/whole.h"

#include <ATen/core/grad_mode.h>

#include "comm/pieces.h"
#include "engine/shapes.h"
#include "engine/state.h"
#include "one_sentence.h"
#include "optim/agreement.h"
#include "optim/parameters.h"
#include "optim/private.h"

namespace torchdion {

namespace optim {

namespace {

using Cuts = std::array<Cut, 3>;

at::Tensor cut(at::Tensor tensor, const Cuts& cuts) {
  for (const Cut& cut : cuts) {
    if (!cut.axis->absent()) tensor = comm::piece_of(tensor, cut.dim, *cut.axis);
  }
  return tensor;
}

at::Tensor gather(at::Tensor tensor, const Cuts& cuts, at::IntArrayRef whole) {
  for (const Cut& cut : cuts) {
    if (!cut.axis->absent()) tensor = comm::gather_pieces(tensor, cut.dim, whole[cut.dim], *cut.axis);
  }
  return tensor;
}

// The axis that cuts the side of the matrices that Q shares with them cuts its rows, the other its columns.
Cuts cuts_of_Q(at::IntArrayRef whole_Q, const at::Tensor& param, const Layout& layout, const DionOptions& options) {
  const std::vector<int64_t> sizes = engine::matrix_sizes(engine::whole_sizes(param, layout), form_of(options));
  const int64_t m = sizes.end()[-2], n = sizes.back(), dims = static_cast<int64_t>(whole_Q.size());
  const bool right = m == n ? options.orientation() == Orientation::right : whole_Q.end()[-2] == m;
  return {{{right ? &layout.rows : &layout.cols, "rows", dims - 2},
           {right ? &layout.cols : &layout.rows, "columns", dims - 1},
           {&layout.batch, "stack", 0}}};
}

}  // namespace

at::Tensor cut(const at::Tensor& whole, const at::Tensor& param, const Layout& layout, const DionOptions& options) {
  return cut(whole, cuts_of(param, layout, options));
}

at::Tensor cut_Q(const at::Tensor& whole, const at::Tensor& param, const Layout& layout, const DionOptions& options) {
  return cut(whole, cuts_of_Q(whole.sizes(), param, layout, options));
}

at::Tensor gather_Q(const at::Tensor& param, const DionParamState& state, const Layout& layout,
                    const DionOptions& options) {
  if (state.whole_Q().empty()) return state.Q();
  return gather(state.Q(), cuts_of_Q(state.whole_Q(), param, layout, options), state.whole_Q());
}

DionParamState gather_state(const at::Tensor& param, const DionParamState& state, const Layout& layout,
                            const DionOptions& options) {
  const Cuts cuts = cuts_of(param, layout, options);
  const at::IntArrayRef sizes = engine::whole_sizes(param, layout);
  DionParamState whole;
  whole.step(state.step()).momentum(gather(state.momentum(), cuts, sizes));
  if (state.variance().defined()) whole.variance(gather(state.variance(), cuts, sizes));
  if (state.Q().defined()) whole.Q(gather_Q(param, state, layout, options));
  return whole;
}

}  // namespace optim

void Dion::resize_rank() try {
  const auto check = [&] {
    private_->check(*this);
    optim::check_groups(param_groups(), static_cast<const DionOptions&>(defaults()));
  };
  private_->agree(*this, {engine::Operation::resize_rank, check});
  private_->average_momenta(*this);
  const at::NoGradGuard no_grad;
  int64_t index = -1;
  for (std::size_t i = 0; i < param_groups().size(); ++i) {
    const DionOptions& options = optim::options_of(param_groups()[i], i);
    for (const at::Tensor& param : param_groups()[i].params()) {
      ++index;
      const auto found = state().find(param.unsafeGetTensorImpl());
      if (found == state().end()) continue;
      optim::ours(*found->second);  // refuses another optimizer's
      auto& state = static_cast<DionParamState&>(*found->second);
      const Layout& layout = optim::layout_of(private_->layouts, param);
      const at::IntArrayRef sizes = engine::whole_sizes(param, layout);
      const std::vector<int64_t> matrices = engine::matrix_sizes(sizes, optim::form_of(options));
      const int64_t m = matrices.end()[-2], n = matrices.back();
      if (!state.Q().defined() || engine::whole_numel(param, layout) == 0) continue;
      const int64_t r = engine::rank_of(m, n, options.rank_fraction(), options.rank_multiple_of());
      const at::Tensor Q = optim::gather_Q(param, state, layout, options);
      if (Q.size(-1) == r) continue;
      const at::Tensor whole = engine::resized_Q(Q.cpu(), r, options.seed(), index);
      state.Q(optim::cut_Q(whole, param, layout, options).contiguous().clone().to(param.device()));
      if (!layout.is_local()) state.whole_Q(whole.sizes().vec());
    }
  }
  private_->agreed = false;
} catch (const c10::Error&) {
  rethrow_in_one_sentence();
}

}  // namespace torchdion
