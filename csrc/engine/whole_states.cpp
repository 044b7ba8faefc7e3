// States put together from what all ranks have of them, and factors of another rank r.
#include <ATen/core/grad_mode.h>

#include "engine/core.h"
#include "engine/cuts.h"
#include "engine/shapes.h"
#include "engine/state.h"

namespace torchdion::engine {

namespace {

at::Tensor gathered(const algorithms::State& declared, const StateTensor& one, const ParameterView& view,
                    const algorithms::Options& options) {
  if (view.part) return view.part->gather(one.tensor, whole_state_sizes(declared, view.sizes(), options));
  if (view.layout.is_local()) return one.tensor;
  return gather(one.tensor, one.sizes, cuts_of(declared, one.sizes, view, options), view.layout);
}

// Factors, to the rank that the options ask for. To be called on every rank. Whether any has changed.
bool resize(ParameterView& view, const algorithms::Options& options) {
  bool has_changed = false;
  for (const std::size_t k : algorithms::factors_of(*view.algorithm)) {
    const algorithms::State& declared = view.algorithm->states[k];
    const StateTensor* factor = view.state.find(declared.name);
    if (!factor) continue;
    const int64_t r = whole_state_sizes(declared, view.sizes(), options).back();
    if (factor->sizes.back() == r) continue;
    const at::Tensor before = gathered(declared, *factor, view, options).cpu();
    const at::Tensor whole = resized_factor(declared, before, r, options.integer("seed"), view.index);
    const Cuts cuts = cuts_of(declared, whole.sizes(), view, options);
    view.state.set(declared.name, piece_of(whole, cuts, view.layout).contiguous().clone().to(view.tensor.device()),
                   whole.sizes());
    has_changed = true;
  }
  return has_changed;
}

}  // namespace

std::vector<ParameterState> Core::whole_states(Front& front) {
  const Hold hold(*this);
  begin(front, Operation::whole_state_dict, {}, [&] { check_states(); });
  average_momenta();
  const at::NoGradGuard no_grad;
  std::vector<ParameterState> whole;
  for (const ParameterView& view : all_parameters(groups)) {
    whole.push_back(view.state);
    for (StateTensor& one : whole.back().tensors) {
      const int64_t k = algorithms::index_of(*view.algorithm, one.name);
      one.tensor = gathered(view.algorithm->states[k], one, view, groups[view.group].options.values);
    }
  }
  return whole;
}

std::vector<OwnedState> Core::owned_states(Front& front) {
  const Hold hold(*this);
  update(front, Operation::check_replicas);
  std::vector<OwnedState> owned;
  for (const ParameterView& view : all_parameters(groups)) {
    if (!view.part) continue;
    for (const algorithms::State& state : view.algorithm->states) {
      std::vector<int64_t> whole = whole_state_sizes(state, view.sizes(), groups[view.group].options.values);
      const int64_t begin = view.part->begin_of(whole);
      owned.push_back({view.index, std::string(state.name), std::move(whole), begin});
    }
  }
  return owned;
}

void Core::resize_rank(Front& front, const OptionsOfGroup& options) {
  const Hold hold(*this);
  std::vector<GroupOptions> before;
  const auto check = [&] {
    for (std::size_t g = 0; g < groups.size(); ++g) {
      before.push_back(groups[g].options);
      const algorithms::Options given = options ? options(g) : algorithms::Options();
      for (const char* name : {"rank_fraction", "rank_multiple_of"}) {
        if (given.has(name)) groups[g].options.values.set(name, given.at(name));
      }
    }
    check_states();
    for (const ParameterView& view : all_parameters(groups)) {
      const algorithms::Options& own = groups[view.group].options.values;
      if (view.state.is_begun()) check_factors(view.sizes(), own, view.layout, view.name);
    }
  };
  try {
    begin(front, Operation::resize_rank, {}, check);
  } catch (...) {
    for (std::size_t g = 0; g < before.size(); ++g) groups[g].options = std::move(before[g]);
    throw;
  }
  average_momenta();
  const at::NoGradGuard no_grad;
  for (ParameterView& view : all_parameters(groups)) {
    const bool has_factors = view.state.is_begun() && view.numel() > 0;
    if (has_factors && resize(view, groups[view.group].options.values)) front.keep(view);
  }
  agreed_ = false;
}

}  // namespace torchdion::engine
