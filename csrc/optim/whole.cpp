#include "optim/whole.h"

#include <ATen/core/grad_mode.h>

#include "engine/shapes.h"
#include "engine/state.h"
#include "one_sentence.h"
#include "optim/agreement.h"
#include "optim/groups.h"
#include "optim/options.h"
#include "optim/parameters.h"
#include "optim/private.h"
#include "words.h"

namespace torchdion {

namespace optim {

engine::Cuts cuts_of(const algorithms::State& state, at::IntArrayRef whole, const at::Tensor& param,
                     const Layout& layout, const engine::GroupOptions& options) {
  const bool right = state.shape == algorithms::StateShape::factor &&
                     engine::is_right(whole, engine::whole_sizes(param, layout), options.values);
  const engine::Cuts of_param = engine::cuts_of_parameter(param.dim(), options.values);
  return engine::cuts_of_state(state, static_cast<int64_t>(whole.size()), of_param, right);
}

namespace {

at::Tensor gather(const algorithms::State& declared, const at::Tensor& param, const ParamState& state,
                  const Layout& layout, const engine::GroupOptions& options) {
  const std::string name(declared.name);
  const at::Tensor& piece = state.tensor(name);
  if (layout.is_local()) return piece;
  const std::vector<int64_t> whole =
      declared.shape == algorithms::StateShape::factor
          ? state.whole_sizes(name)
          : engine::whole_state_sizes(declared, engine::whole_sizes(param, layout), options.values);
  return engine::gather(piece, whole, cuts_of(declared, whole, param, layout, options), layout);
}

// A factor, to the rank that the options ask for. To be called on every rank.
void resize(const algorithms::State& declared, const at::Tensor& param, ParamState& state, const Layout& layout,
            const engine::GroupOptions& options, int64_t index) {
  const std::string name(declared.name);
  if (!state.tensor(name).defined()) return;
  const int64_t r = engine::whole_state_sizes(declared, engine::whole_sizes(param, layout), options.values).back();
  const at::Tensor factor = gather(declared, param, state, layout, options);
  if (factor.size(-1) == r) return;
  const at::Tensor whole = engine::resized_factor(declared, factor.cpu(), r, options.values.integer("seed"), index);
  const engine::Cuts cuts = cuts_of(declared, whole.sizes(), param, layout, options);
  state.tensor(name, engine::piece_of(whole, cuts, layout).contiguous().clone().to(param.device()));
  if (!layout.is_local()) state.whole_factor(name, whole.sizes().vec());
}

}  // namespace

ParamState gather_state(const at::Tensor& param, const ParamState& state, const Layout& layout, const Part* part,
                        const engine::GroupOptions& options) {
  ParamState whole = state;  // also what a program keeps there
  for (const algorithms::State& declared : algorithms::algorithm_of(param.dim(), options.values).states) {
    const std::string name(declared.name);
    if (!state.tensor(name).defined()) continue;
    if (part) {
      const std::vector<int64_t> sizes = engine::whole_state_sizes(declared, param.sizes(), options.values);
      whole.tensor(name, part->gather(state.tensor(name), sizes));
    } else {
      whole.tensor(name, gather(declared, param, state, layout, options));
    }
  }
  return whole;
}

}  // namespace optim

void Optimizer::resize_rank() try {
  const Speaking speaking(held().words(*this));
  const auto check = [&] {
    held().check(*this);
    optim::checked(param_groups(), static_cast<const Options&>(defaults()));
    for (std::size_t i = 0; i < param_groups().size(); ++i) {
      const Options given = optim::with_kept_sides(*this, held().layouts, i, held().said);
      const engine::GroupOptions options = optim::values_of(given, optim::group_name(i));
      const std::vector<at::Tensor>& params = param_groups()[i].params();
      for (std::size_t k = 0; k < params.size(); ++k) {
        const Layout& layout = optim::layout_of(held().layouts, params[k]);
        if (state().count(params[k].unsafeGetTensorImpl()) == 0 || engine::whole_numel(params[k], layout) == 0)
          continue;
        optim::check_factors(params[k], layout, optim::algorithm_of(params[k], given), options,
                             optim::parameter_name(k, i));
      }
    }
  };
  held().agree(*this, {engine::Operation::resize_rank, check});
  held().average_momenta(*this);
  const at::NoGradGuard no_grad;
  int64_t index = -1;
  for (std::size_t i = 0; i < param_groups().size(); ++i) {
    const Options given = optim::with_kept_sides(*this, held().layouts, i, held().said);
    const engine::GroupOptions options = optim::values_of(given, optim::group_name(i));
    for (const at::Tensor& param : param_groups()[i].params()) {
      ++index;
      const auto found = state().find(param.unsafeGetTensorImpl());
      if (found == state().end()) continue;
      optim::ours(*found->second);  // refuses another optimizer's
      auto& state = static_cast<ParamState&>(*found->second);
      const algorithms::Algorithm& algorithm = optim::algorithm_of(param, given);
      const Layout& layout = optim::layout_of(held().layouts, param);
      if (engine::whole_numel(param, layout) == 0) continue;
      for (const std::size_t k : algorithms::factors_of(algorithm)) {
        optim::resize(algorithm.states[k], param, state, layout, options, index);
      }
    }
  }
  held().agreed = false;
} catch (const c10::Error&) {
  rethrow_in_one_sentence();
}

}  // namespace torchdion
