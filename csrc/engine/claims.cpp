// What ranks take parameters, groups and the optimizer for.
#include <limits>
#include <map>
#include <sstream>

#include "engine/agreement.h"
#include "engine/checks.h"
#include "engine/matrix_form.h"
#include "engine/state.h"
#include "words.h"

namespace torchdion::engine {

namespace {

// All of a number's digits: equal texts are equal numbers.
std::string exact(double number) {
  std::ostringstream stream;
  stream.precision(std::numeric_limits<double>::max_digits10);
  stream << number;
  return stream.str();
}

Properties properties_of(const GroupOptions& group) {
  Properties properties;
  for (const algorithms::Option& option : algorithms::options()) {
    const at::Tensor& rate = option.name == "lr" ? group.lr : group.weight_decay;
    const bool is_tensor = option.may_be_tensor && rate.defined();
    properties.emplace_back(
        option.name, is_tensor ? shown(rate.item<double>()) : algorithms::shown(option, group.values.at(option.name)));
  }
  return properties;
}

std::string text_of(const std::string& name, at::ScalarType dtype, at::IntArrayRef factor) {
  std::string text = c10::str(name, " of ", shown(dtype));
  return factor.empty() ? text : c10::str(text, " and shape ", factor);
}

// Over all ranks.
std::vector<int64_t> claimed_sizes(const ParameterView& view) {
  return view.param.is_nested() ? std::vector<int64_t>() : view.sizes().vec();
}

// True if a first step may make factors of it: a frozen parameter may have a form that no algorithm takes.
bool has_factors(const ParameterView& view, const GroupOptions& group) {
  const MatrixForm form = form_of(group.values);
  return is_computed(view.param.scalar_type()) && claimed_sizes(view)[form.batch_dims] % form.blocks == 0;
}

// Dtypes, and the sizes of factors: those that there are, or else those that a first step makes.
std::string text_of_states(const ParameterView& view, const GroupOptions& group, bool are_made) {
  std::string all;
  const std::vector<int64_t> whole = claimed_sizes(view);
  for (const algorithms::State& state :
       algorithms::algorithm_of(static_cast<int64_t>(whole.size()), group.values).states) {
    const StateTensor* own = view.state.find(state.name);
    const bool is_factor = state.shape == algorithms::StateShape::factor;
    if (!own && (!are_made || (is_factor && !has_factors(view, group)))) continue;
    std::vector<int64_t> sizes;
    if (is_factor) sizes = own ? own->sizes : whole_state_sizes(state, whole, group.values);
    const at::ScalarType dtype =
        own ? own->tensor.scalar_type() : group.values.dtype_or(state.dtype_option, view.param.scalar_type());
    all += (all.empty() ? "" : ", ") + text_of(std::string(state.name), dtype, sizes);
  }
  return all;
}

Claim claim_of(const ParameterView& view, const GroupOptions& group, Operation operation, const Axis& copies) {
  const at::Tensor &param = view.param, &step = view.state.step;
  const bool is_step = operation == Operation::step, has_state = is_step || view.state.is_begun();
  Claim claim{view.name,
              {{"group", std::to_string(view.group)},
               {"shape", c10::str(at::IntArrayRef(claimed_sizes(view)))},
               {"dtype", shown(param.scalar_type())},
               {"kind of device", c10::DeviceTypeName(param.device().type(), /*lower_case=*/true)},
               {"layout", view.lies},
               {"requires_grad", shown(param.requires_grad())},
               {"steps taken", has_state ? exact(step.defined() ? step.item<double>() : 0) : "none"},
               {"state", has_state ? text_of_states(view, group, is_step) : "none"}},
              view.axes};
  claim.axes.push_back(copies);
  if (!is_step) return claim;
  if (param.grad().defined()) claim.gradient = param.grad().scalar_type();
  // Those of copies are averaged, so that all have a gradient or none has.
  claim.shared = {view.layout.rows, view.layout.cols, view.layout.batch, view.layout.replicas};
  return claim;
}

}  // namespace

std::vector<Claim> claims_of(const std::vector<const ParameterView*>& parameters,
                             const std::vector<ParameterGroup>& groups, Properties optimizer, Operation operation,
                             const Axis& copies) {
  Claim all{"the optimizer", std::move(optimizer), {}, /*is_parameter=*/false};
  std::map<std::size_t, Claim> of_groups;
  std::vector<Claim> each;
  for (const ParameterView* view : parameters) {
    const GroupOptions& options = groups[view->group].options;
    const auto [group, is_new] = of_groups.try_emplace(view->group);
    if (is_new) group->second = {c10::str("parameter group ", view->group), properties_of(options), {}, false};
    each.push_back(claim_of(*view, options, operation, copies));
    for (Claim* claim : {&group->second, &all}) {
      claim->axes.insert(claim->axes.end(), each.back().axes.begin(), each.back().axes.end());
    }
  }
  std::vector<Claim> claims{std::move(all)};
  for (auto& [index, group] : of_groups) claims.push_back(std::move(group));
  claims.insert(claims.end(), each.begin(), each.end());
  return claims;
}

}  // namespace torchdion::engine
