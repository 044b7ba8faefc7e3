#include "optim/inputs.h"

#include <ATen/ops/zeros.h>

#include <algorithm>

#include "engine/checks.h"
#include "engine/shapes.h"
#include "engine/state.h"
#include "linalg/memory.h"
#include "optim/capturable.h"
#include "optim/groups.h"
#include "optim/options.h"
#include "optim/parameters.h"
#include "words.h"

namespace torchdion::optim {

namespace {

void check_layout_of(const engine::Group& group, std::size_t i, const std::string& name) {
  const Layout& layout = group.layouts[i];
  if (layout.is_local() || group.whole_factors.empty()) return;
  engine::shape_of(group, i);  // that the factors are of the parameter
  std::vector<std::vector<int64_t>> factors;
  for (const auto& of_all : group.whole_factors) factors.push_back(of_all[i]);
  engine::check_layout(*group.algorithm, engine::whole_sizes(group.X[i], layout), factors, group.options, layout, name);
}

// As the algorithm sees it: where copies share no work, all that it knows of them is that there are some.
Layout layout_under(const algorithms::Algorithm& algorithm, Layout layout) {
  if (algorithm.shares_among_copies || layout.copies.absent()) return layout;
  layout.has_averaged_copies = true;
  layout.copies = {};
  return layout;
}

}  // namespace

void StepInputs::add(const torch::optim::OptimizerParamGroup& param_group, std::size_t group_index,
                     const engine::GroupOptions& options) {
  const Options& given = options_of(param_group, group_index);
  for (const algorithms::Algorithm* algorithm : algorithms::all()) {
    int64_t index = index_;
    std::optional<engine::Group> group;
    for (std::size_t k = 0; k < param_group.params().size(); ++k, ++index) {
      const at::Tensor& param = param_group.params()[k];
      if (&algorithm_of(param, given) != algorithm || !gradient_of(param).defined()) continue;
      if (!group) group = engine::group_of(*algorithm, options, param.device().type());
      append(*group, param, state_of(param, *algorithm, options, index), parameter_name(k, group_index));
    }
    if (!group) continue;
    const auto is_local = [](const Layout& layout) { return layout.is_local(); };
    if (std::all_of(group->layouts.begin(), group->layouts.end(), is_local)) {
      group->layouts.clear();
      group->whole_factors.clear();
    }
    groups.all.push_back(std::move(*group));
  }
  index_ += static_cast<int64_t>(param_group.params().size());
}

at::Tensor StepInputs::gradient_of(const at::Tensor& param) const {
  const auto missing = missing_.find(param.unsafeGetTensorImpl());
  if (param.grad().defined() || missing == missing_.end()) return param.grad();
  return at::zeros(param.sizes(), param.options().dtype(missing->second));
}

bool StepInputs::averages() const {
  return std::any_of(groups.all.begin(), groups.all.end(), [](const engine::Group& group) {
    return group.takes_matrices() && std::any_of(group.layouts.begin(), group.layouts.end(),
                                                 [](const Layout& layout) { return !layout.replicas.absent(); });
  });
}

void StepInputs::keep_new_states() {
  for (auto& [param, state] : made_) states_[param] = std::move(state);
}

const ParamState& StepInputs::state_of(const at::Tensor& param, const algorithms::Algorithm& algorithm,
                                       const engine::GroupOptions& options, int64_t index) {
  const auto found = states_.find(param.unsafeGetTensorImpl());
  if (found != states_.end() && is_begun(ours(*found->second))) return ours(*found->second);
  TORCH_CHECK(!is_captured(param), prefix(), "a CUDA graph cannot capture a parameter's first step: take one before");
  auto beside =
      found == states_.end() ? std::make_unique<ParamState>() : std::make_unique<ParamState>(ours(*found->second));
  made_.emplace_back(param.unsafeGetTensorImpl(), std::move(beside));
  ParamState& made = *made_.back().second;
  const c10::Device counter = options.values.flag("capturable") ? param.device() : c10::Device(c10::kCPU);
  made.tensor("step", at::zeros({}, at::TensorOptions(at::kFloat).device(counter)));
  const Layout& layout = layout_of(layouts_, param);
  const at::IntArrayRef sizes = engine::whole_sizes(param, layout);
  const Part* part = part_of(parts_, param);
  for (const algorithms::State& state : algorithm.states) {
    const at::ScalarType dtype = options.values.dtype_or(state.dtype_option, param.scalar_type());
    if (part) {  // no state of those that have owners starts otherwise
      const std::vector<int64_t> own = part->sizes_of(engine::whole_state_sizes(state, sizes, options.values));
      made.tensor(std::string(state.name), at::zeros(own, param.options().dtype(dtype)));
      continue;
    }
    made.tensor(std::string(state.name), engine::start_of(state, sizes, param.sizes(), options.values, index,
                                                          param.options().dtype(dtype), layout));
    if (state.shape == algorithms::StateShape::factor && !layout.is_local()) {
      made.whole_factor(std::string(state.name), engine::whole_state_sizes(state, sizes, options.values));
    }
  }
  return made;
}

at::Tensor StepInputs::counter_of(const at::Tensor& param, const ParamState& state) {
  const at::Tensor& step = state.step();
  const at::ScalarType dtype = groups.capturable ? at::kFloat : step.scalar_type();
  const c10::Device device = groups.capturable ? param.device() : c10::Device(c10::kCPU);
  if (step.device() == device && step.scalar_type() == dtype) return step;
  const bool counts = step.scalar_type() == at::kFloat || step.scalar_type() == at::kDouble ||
                      at::isIntegralType(step.scalar_type(), /*includeBool=*/false);
  if (!counts || step.numel() != 1 || !linalg::has_memory(step) || is_captured(param)) return step;  // to be refused
  auto& kept = static_cast<ParamState&>(*states_.at(param.unsafeGetTensorImpl()));
  return kept.tensor("step", step.to(device, dtype)).step();
}

void StepInputs::append(engine::Group& group, const at::Tensor& param, const ParamState& state,
                        const std::string& name) {
  engine::check_state_names(*group.algorithm, names_of(state), param.sizes(), name);
  TORCH_CHECK_VALUE(state.step().defined(), prefix(), "the state of ", name, " of shape ", param.sizes(),
                    " lacks the tensor 'step'");
  group.X.push_back(param);
  group.G.push_back(gradient_of(param));
  group.steps.push_back(counter_of(param, state));
  const Part* part = part_of(parts_, param);
  const Layout& layout = layout_of(layouts_, param);
  group.layouts.push_back(part ? layout : layout_under(*group.algorithm, layout));
  if (part) group.shares.push_back(part->shares);
  group.states.resize(group.algorithm->states.size());
  for (std::size_t k = 0; k < group.states.size(); ++k) {
    group.states[k].push_back(state.tensor(std::string(group.algorithm->states[k].name)));
  }
  const std::vector<std::size_t> factors = algorithms::factors_of(*group.algorithm);
  group.whole_factors.resize(factors.size());
  for (std::size_t f = 0; f < factors.size(); ++f) {
    group.whole_factors[f].push_back(state.whole_sizes(std::string(group.algorithm->states[factors[f]].name)));
  }
  check_layout_of(group, group.X.size() - 1, name);
}

}  // namespace torchdion::optim
