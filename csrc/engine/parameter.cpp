#include "engine/parameter.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "engine/checks.h"
#include "engine/matrix_form.h"
#include "engine/shapes.h"
#include "engine/state.h"
#include "linalg/backend.h"
#include "words.h"

namespace torchdion::engine {

namespace {

// More than batch_dims may count, and 2.
constexpr int64_t kManyDims = int64_t{1} << 40;

// Steps compute with dense tensors of these dtypes alone.
bool has_numbers(const at::Tensor& param) {
  return param.layout() == at::kStrided && !param.is_nested() && is_computed(param.scalar_type());
}

// Reads only properties that last for a training, so that a parameter that is unfrozen later has a part already.
bool may_have_states(const ParameterView& view, const algorithms::Options& group) {
  if (!has_numbers(view.param)) return false;
  const MatrixForm form = form_of(group);
  return !view.algorithm->takes_matrices() || view.sizes()[form.batch_dims] % form.blocks == 0;
}

// own: the group's algorithm; updating: the one that updates the parameter.
void check_form(const at::Tensor& param, MatrixForm form, const algorithms::Algorithm& own,
                const algorithms::Algorithm& updating, const std::string& name) {
  TORCH_CHECK_VALUE(form.batch_dims <= param.dim() || !own.takes_matrices(), prefix(),
                    "batch_dims must be at most the number of dimensions of ", name, " of shape ", shown(param.sizes()),
                    ", got ", form.batch_dims);
  if (updating.takes_matrices()) check_blocks(param.size(form.batch_dims), form.blocks, name);
}

// In the groups whose states have owners.
void resolve_owners(std::vector<ParameterGroup>& groups) {
  std::vector<Owned> owned;
  std::vector<ParameterView*> views;
  const ParameterView* alone = nullptr;  // without other ranks
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (!has_owners(groups[g].options.values)) continue;
    for (ParameterView& view : groups[g].parameters) {
      if (!may_have_states(view, groups[g].options.values)) continue;
      const Axis& axis = axis_of_owners(view.layout, view.name);
      if (axis.absent()) {
        alone = &view;
        continue;
      }
      owned.push_back({g, view.tensor.sizes().vec(), &groups[g].options.values, axis});
      views.push_back(&view);
    }
  }
  TORCH_CHECK_VALUE(owned.empty() || !alone, prefix(), "the layout of ", alone ? alone->name : "",
                    " must have replicas or copies under ",
                    algorithms::assigned(*algorithms::option("owners"), std::string_view("shard")),
                    " as those of other parameters have");
  std::vector<comm::Shares> shares = shares_of(owned);
  for (std::size_t i = 0; i < owned.size(); ++i) {
    views[i]->part = Part{owned[i].axis, std::move(shares[i]), owned[i].sizes};
  }
}

}  // namespace

const StateTensor* ParameterState::find(std::string_view name) const {
  const auto found = std::ranges::find(tensors, name, &StateTensor::name);
  return found == tensors.end() ? nullptr : &*found;
}

void ParameterState::set(std::string_view name, at::Tensor tensor, at::IntArrayRef sizes) {
  auto found = std::ranges::find(tensors, name, &StateTensor::name);
  if (found == tensors.end()) found = tensors.insert(found, {std::string(name), {}, {}});
  found->tensor = std::move(tensor);
  found->sizes = sizes.vec();
}

std::string group_name(std::size_t index) { return " (parameter group " + std::to_string(index) + ")"; }

std::string parameter_name(std::size_t index, std::size_t group) {
  return "parameter " + std::to_string(index) + group_name(group);
}

bool is_left_alone(const at::Tensor& param) { return !param.requires_grad() && !param.grad().defined(); }

bool is_passed_over(const at::Tensor& param) {
  return is_left_alone(param) && !(has_numbers(param) && linalg::has_backend(param.device().type()));
}

void check_trained(const at::Tensor& param, const std::string& name) {
  TORCH_CHECK_VALUE(param.layout() == at::kStrided && !param.is_nested(), prefix(), name, " must be dense, got ",
                    param.is_nested() ? "nested" : shown(param.layout()));
  TORCH_CHECK_VALUE(is_computed(param.scalar_type()), prefix(), name, " must be real floating-point, got ",
                    shown_type(param.scalar_type()));
  TORCH_CHECK_NOT_IMPLEMENTED(linalg::has_backend(param.device().type()), prefix(), name, " is on ", param.device(),
                              ", which this build has no kernels for");
}

void check_parameter(const at::Tensor& param, const algorithms::Options& group, const std::string& name) {
  if (is_left_alone(param)) return;
  check_trained(param, name);
  check_form(param, form_of(group), algorithms::algorithm(group.text("algorithm")),
             algorithms::algorithm_of(param.dim(), group), name);
}

void check_parameters(const ParameterGroup& group) {
  const MatrixForm form = form_of(group.options.values);
  const algorithms::Algorithm& own = algorithms::algorithm(group.options.values.text("algorithm"));
  for (const ParameterView& view : group.parameters) {
    if (is_left_alone(view.param)) continue;
    check_trained(view.param, view.name);
    check_form(view.param, form, own, *view.algorithm, view.name);
  }
}

void check_state(ParameterView& view) {
  if (view.state.is_checked) return;
  std::vector<std::string> names;
  for (const StateTensor& one : view.state.tensors) names.push_back(one.name);
  check_state_names(*view.algorithm, names, view.sizes(), view.name);
  TORCH_CHECK_VALUE(view.state.step.defined(), prefix(), "the state of ", view.name, " of shape ", view.sizes(),
                    " lacks the tensor 'step'");
  view.state.is_checked = true;
}

void check_factors(at::IntArrayRef sizes, const algorithms::Options& group, const Layout& layout,
                   const std::string& name) {
  const algorithms::Algorithm& algorithm = algorithms::algorithm_of(static_cast<int64_t>(sizes.size()), group);
  std::vector<std::vector<int64_t>> factors;
  for (const std::size_t k : algorithms::factors_of(algorithm)) {
    factors.push_back(whole_state_sizes(algorithm.states[k], sizes, group));
  }
  if (factors.empty() || c10::multiply_integers(sizes) == 0) return;
  check_layout(algorithm, sizes, factors, group, layout, name);
}

void resolve(std::vector<ParameterGroup>& groups) {
  bool have_owners = false;
  for (ParameterGroup& group : groups) {
    const algorithms::Options& options = group.options.values;
    const algorithms::Algorithm& of_matrices = algorithms::algorithm_of(kManyDims, options);
    const algorithms::Algorithm& of_others = algorithms::algorithm_of(0, options);
    const int64_t batch_dims = options.integer_or_zero("batch_dims");
    for (ParameterView& view : group.parameters) {
      const algorithms::Algorithm* algorithm = view.param.dim() - batch_dims < 2 ? &of_others : &of_matrices;
      if (view.algorithm != algorithm) view.state.is_checked = false;
      view.algorithm = algorithm;
      view.part.reset();
    }
    have_owners = have_owners || has_owners(options);
  }
  if (have_owners) resolve_owners(groups);
}

Cuts cuts_of(const algorithms::State& state, at::IntArrayRef whole, const ParameterView& view,
             const algorithms::Options& group) {
  const bool right = state.shape == algorithms::StateShape::factor && is_right(whole, view.sizes(), group);
  const Cuts of_param = cuts_of_parameter(view.param.dim(), group);
  return cuts_of_state(state, static_cast<int64_t>(whole.size()), of_param, right);
}

std::vector<std::string> decoupled_states(const ParameterView& view, const algorithms::Algorithm& algorithm,
                                          const algorithms::Options& group) {
  std::vector<int64_t> ranks;
  for (const std::size_t k : algorithms::factors_of(algorithm)) {
    const StateTensor* factor = view.state.find(algorithm.states[k].name);
    if (!factor) return {};
    ranks.push_back(factor->sizes.back());
  }
  if (!view.state.is_begun() || view.layout.replicas.absent() || view.numel() == 0) return {};
  return decoupled_states(algorithm, view.sizes(), ranks, group, view.layout);
}

}  // namespace torchdion::engine
