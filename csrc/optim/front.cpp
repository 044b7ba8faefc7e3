#include "optim/front.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "optim/groups.h"
#include "optim/options.h"
#include "words.h"

namespace torchdion::optim {

using torch::optim::OptimizerParamGroup;

namespace {

std::string text(const Layout& layout) {
  std::string all;
  const auto add = [&](const char* side, const Axis& axis) {
    if (!axis.absent()) all += c10::str(all.empty() ? "" : ", ", side, " over '", axis.name(), "' (", axis.size, ")");
  };
  add("rows", layout.rows);
  add("columns", layout.cols);
  add("stack", layout.batch);
  add("replicas", layout.replicas);
  add("copies", layout.copies);
  return all;
}

engine::ParameterState to_core(const ParamState& state) {
  engine::ParameterState shown;
  shown.step = state.step();
  for (const std::string_view name : algorithms::states()) {
    const at::Tensor& tensor = state.tensor(std::string(name));
    if (tensor.defined()) shown.set(name, tensor, state.whole_sizes(std::string(name)));
  }
  return shown;
}

}  // namespace

std::vector<engine::ParameterGroup> to_core(const ParamGroups& groups, const Layouts& layouts) {
  static const Layout whole;
  std::vector<engine::ParameterGroup> shown;
  int64_t index = 0;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    shown.emplace_back();
    for (std::size_t k = 0; k < groups[g].params().size(); ++k) {
      const at::Tensor& param = groups[g].params()[k];
      const auto found = layouts.find(param.unsafeGetTensorImpl());
      const Layout& layout = found == layouts.end() ? whole : found->second;
      shown.back().parameters.push_back({engine::parameter_name(k, g),
                                         index++,
                                         g,
                                         param,
                                         param,
                                         layout,
                                         {layout.rows, layout.cols, layout.batch, layout.replicas, layout.copies},
                                         text(layout)});
    }
  }
  return shown;
}

void write_state(const engine::ParameterView& view, ParamState& state) {
  state.tensor("step", view.state.step);
  for (const engine::StateTensor& one : view.state.tensors) {
    state.tensor(one.name, one.tensor);
    const int64_t k = algorithms::index_of(*view.algorithm, one.name);
    const bool is_factor = k >= 0 && view.algorithm->states[k].shape == algorithms::StateShape::factor;
    if (is_factor && !view.layout.is_local()) state.whole_factor(one.name, one.sizes);
  }
}

bool Front::has_other_parameters() const {
  const std::vector<OptimizerParamGroup>& groups = optimizer_.param_groups();
  const auto is_same = [](const OptimizerParamGroup& group, const std::vector<const void*>& seen) {
    return std::ranges::equal(group.params(), seen, {}, &at::Tensor::unsafeGetTensorImpl);
  };
  return !std::ranges::equal(groups, seen_.params, is_same);
}

void Front::update(engine::Core& core, engine::Operation operation) {
  const std::vector<OptimizerParamGroup>& groups = optimizer_.param_groups();
  if (core.has_lost() || has_other_parameters()) {
    core.groups = to_core(groups, layouts_);
    seen_ = {};
    std::size_t count = 0;
    for (const OptimizerParamGroup& group : groups) {
      seen_.params.emplace_back();
      for (const at::Tensor& param : group.params()) seen_.params.back().push_back(param.unsafeGetTensorImpl());
      count += group.params().size();
    }
    seen_.states.resize(count);
    core.all_shown();
    core.parameters_changed();
  }
  const auto& defaults = static_cast<const Options&>(optimizer_.defaults());
  std::vector<engine::GroupOptions> options = checked(groups, defaults);  // anyone may have written to them
  auto seen = seen_.states.begin();
  for (engine::ParameterGroup& group : core.groups) {
    for (engine::ParameterView& view : group.parameters) {
      const auto found = optimizer_.state().find(view.param.unsafeGetTensorImpl());
      const ParamState* state = found == optimizer_.state().end() ? nullptr : &ours(*found->second);
      const uint64_t version = state ? state->version_ : 0;
      if (state != seen->state || version != seen->version) {
        view.state = state ? to_core(*state) : engine::ParameterState();
        *seen = {state, version};
      }
      ++seen;
    }
  }
  look_at(optimizer_.param_groups(), core.groups, options, said_,
          /*resizes=*/operation == engine::Operation::resize_rank);
  for (std::size_t g = 0; g < groups.size(); ++g) core.groups[g].options = std::move(options[g]);
  const Options& first = first_options(groups, defaults);
  core.capturable = first.capturable();
  core.nonfinite = first.nonfinite();
}

std::vector<at::Tensor> Front::gradients(const engine::Core& core) {
  std::vector<at::Tensor> gradients;
  for (const engine::ParameterGroup& group : core.groups) {
    for (const engine::ParameterView& view : group.parameters) gradients.push_back(view.param.grad());
  }
  return gradients;
}

void Front::keep(const engine::ParameterView& view) {
  std::unique_ptr<torch::optim::OptimizerParamState>& kept = optimizer_.state()[view.param.unsafeGetTensorImpl()];
  if (!kept) kept = std::make_unique<ParamState>();
  auto& state = static_cast<ParamState&>(*kept);
  write_state(view, state);
  seen_.states[view.index] = {&state, state.version_};
}

void Front::warn(const std::string& sentence) { TORCH_WARN(sentence); }

}  // namespace torchdion::optim
