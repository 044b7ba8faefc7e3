// The inputs of a step: an optimizer's parameters, gradients and states in lists, by group and algorithm.
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "engine/checks.h"
#include "engine/core.h"
#include "engine/shapes.h"
#include "engine/state.h"
#include "linalg/memory.h"
#include "words.h"

namespace torchdion::engine {

namespace {

// As the algorithm sees it: where copies share no work, all that it knows of them is that there are some.
Layout layout_under(const algorithms::Algorithm& algorithm, Layout layout) {
  if (algorithm.shares_among_copies || layout.copies.absent()) return layout;
  layout.has_averaged_copies = true;
  layout.copies = {};
  return layout;
}

// The state before the first step, beside what is there.
ParameterState new_state(const ParameterView& view, const algorithms::Options& options) {
  TORCH_CHECK(!is_captured(view.tensor), prefix(),
              "a CUDA graph cannot capture a parameter's first step: take one before");
  const at::Tensor& X = view.tensor;
  ParameterState made;
  const c10::Device counter = options.flag("capturable") ? X.device() : c10::Device(c10::kCPU);
  made.step = at::zeros({}, at::TensorOptions(at::kFloat).device(counter));
  for (const algorithms::State& state : view.algorithm->states) {
    const at::ScalarType dtype = options.dtype_or(state.dtype_option, X.scalar_type());
    const std::vector<int64_t> whole = whole_state_sizes(state, view.sizes(), options);
    // No state of those that have owners starts otherwise.
    made.set(state.name,
             view.part
                 ? at::zeros(view.part->sizes_of(whole), X.options().dtype(dtype))
                 : start_of(state, view.sizes(), X.sizes(), options, view.index, X.options().dtype(dtype), view.layout),
             whole);
  }
  return made;
}

// The count of steps, which goes back to where steps count it if a program has moved it: loaders and offloading move
// whole states.
void return_counter(ParameterView& view, bool capturable, Front& front) {
  at::Tensor& step = view.state.step;
  const at::ScalarType dtype = capturable ? at::kFloat : step.scalar_type();
  const c10::Device device = capturable ? view.tensor.device() : c10::Device(c10::kCPU);
  if (step.device() == device && step.scalar_type() == dtype) return;
  const bool is_count = counts_steps(step.scalar_type()) && step.numel() == 1 && linalg::has_memory(step);
  if (!is_count || is_captured(view.tensor)) return;  // to be refused
  step = step.to(device, dtype);
  front.keep(view);
}

class Lists {
 public:
  Lists(Core& core, Front& front, const Missing& missing) : core_(core), front_(front), missing_(missing) {
    groups.capturable = core.capturable;
    const std::vector<at::Tensor> gradients = front.gradients(core);
    const at::Tensor* first = gradients.data();
    for (ParameterGroup& group : core.groups) {
      for (const algorithms::Algorithm* algorithm : algorithms::all()) add(group, *algorithm, first);
      first += group.parameters.size();
    }
  }

  Groups groups;
  std::vector<const ParameterView*> updated;
  std::vector<std::pair<ParameterView*, ParameterState>> made;
  bool averages = false;

 private:
  // gradients: of the group's parameters.
  void add(ParameterGroup& group, const algorithms::Algorithm& algorithm, const at::Tensor* gradients) {
    Group* lists = nullptr;
    for (ParameterView& view : group.parameters) {
      const at::Tensor& own = *gradients++;
      if (view.algorithm != &algorithm) continue;
      const auto missing = own.defined() ? missing_.end() : missing_.find(view.param.unsafeGetTensorImpl());
      if (!own.defined() && missing == missing_.end()) continue;
      if (!own.defined()) front_.require(view);
      if (!lists) {
        lists = &groups.all.emplace_back(group_of(algorithm, group.options, view.tensor.device().type()));
        lists->states.resize(algorithm.states.size());
        lists->whole_factors.resize(algorithms::factors_of(algorithm).size());
      }
      append(*lists, view, group.options.values,
             own.defined() ? own : at::zeros(view.tensor.sizes(), view.tensor.options().dtype(missing->second)));
    }
    if (lists && std::ranges::all_of(lists->layouts, &Layout::is_local)) {
      lists->layouts.clear();
      lists->whole_factors.clear();
    }
  }

  const ParameterState& state_of(ParameterView& view, const algorithms::Options& options) {
    if (!view.state.is_begun()) {
      return made.emplace_back(&view, new_state(view, options)).second;
    }
    check_state(view);
    return_counter(view, core_.capturable, front_);
    return view.state;
  }

  void append(Group& group, ParameterView& view, const algorithms::Options& options, at::Tensor gradient) {
    const ParameterState& state = state_of(view, options);
    updated.push_back(&view);
    group.X.push_back(view.tensor);
    group.G.push_back(std::move(gradient));
    group.steps.push_back(state.step);
    group.layouts.push_back(view.part ? view.layout : layout_under(*group.algorithm, view.layout));
    averages = averages || (group.takes_matrices() && !group.layouts.back().replicas.absent());
    if (view.part) group.shares.push_back(view.part->shares);
    std::vector<std::vector<int64_t>> factors;
    for (std::size_t k = 0; k < group.states.size(); ++k) {
      const StateTensor& one = *state.find(group.algorithm->states[k].name);
      group.states[k].push_back(one.tensor);
      if (group.algorithm->states[k].shape != algorithms::StateShape::factor) continue;
      group.whole_factors[factors.size()].push_back(one.sizes);
      factors.push_back(one.sizes);
    }
    if (factors.empty() || group.layouts.back().is_local()) return;
    shape_of(group, group.X.size() - 1);  // that the factors are of the parameter
    check_layout(*group.algorithm, view.sizes(), factors, options, group.layouts.back(), view.name);
  }

  Core& core_;
  Front& front_;
  const Missing& missing_;
};

}  // namespace

Groups Core::gather_inputs(Front& front, const Missing& missing) {
  prepared_ = {};
  Lists lists(*this, front, missing);
  prepared_.updated = std::move(lists.updated);
  prepared_.made = std::move(lists.made);
  prepared_.averages = lists.averages;
  return std::move(lists.groups);
}

}  // namespace torchdion::engine
