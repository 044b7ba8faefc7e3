// What ranks take parameters, groups and the optimizer for.
#include <algorithm>
#include <array>
#include <charconv>
#include <functional>

#include "engine/agreement.h"
#include "engine/checks.h"
#include "engine/matrix_form.h"
#include "engine/state.h"
#include "words.h"

namespace torchdion::engine {

namespace {

// The digits that tell a number from all others: equal texts are equal numbers.
std::string exact(double number) {
  std::array<char, 32> digits;
  return {digits.data(), std::to_chars(digits.begin(), digits.end(), number).ptr};
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
  const at::Tensor& param = view.param;
  const bool is_step = operation == Operation::step, has_state = is_step || view.state.is_begun();
  Claim claim{view.name,
              {{"group", std::to_string(view.group)},
               {"shape", c10::str(at::IntArrayRef(claimed_sizes(view)))},
               {"dtype", shown(param.scalar_type())},
               {"kind of device", c10::DeviceTypeName(param.device().type(), /*lower_case=*/true)},
               {"layout", view.lies},
               {"requires_grad", shown(param.requires_grad())},
               {"steps taken", ""},
               {"state", has_state ? text_of_states(view, group, is_step) : "none"}},
              view.axes};
  claim.axes.push_back(copies);
  // Those of copies are averaged, so that all have a gradient or none has.
  if (is_step) claim.shared = {view.layout.rows, view.layout.cols, view.layout.batch, view.layout.replicas};
  return claim;
}

constexpr std::size_t kStepsTaken = 6;  // its place among the properties

double number_of(const at::Tensor& step) {
  if (!step.defined()) return 0;
  return step.is_cpu() && step.scalar_type() == at::kFloat ? *step.const_data_ptr<float>() : step.item<double>();
}

// Every step changes these.
void count_steps(Claim& claim, const ParameterView& view, Operation operation) {
  const bool is_step = operation == Operation::step;
  const bool has_state = is_step || view.state.is_begun();
  claim.properties[kStepsTaken].second = has_state ? exact(number_of(view.state.step)) : "none";
  claim.gradient = {};
  if (is_step && view.param.grad().defined()) claim.gradient = view.param.grad().scalar_type();
}

// Numbers that differ where claims do, but for count_steps() and the options of the group. Claims keep their axes
// alive, so that no other line has the address of one.
void know(std::vector<int64_t>& known, const ParameterView& view) {
  const at::Tensor& param = view.param;
  const auto number = [](const Axis& axis) { return reinterpret_cast<int64_t>(axis.line.get()); };
  const auto add_sizes = [&](at::IntArrayRef sizes) {
    known.push_back(static_cast<int64_t>(sizes.size()));
    known.insert(known.end(), sizes.begin(), sizes.end());
  };
  known = {static_cast<int64_t>(std::hash<std::string>()(view.name)),
           static_cast<int64_t>(std::hash<std::string>()(view.lies)),
           static_cast<int64_t>(view.group),
           static_cast<int64_t>(param.scalar_type()),
           static_cast<int64_t>(param.device().type()),
           param.requires_grad(),
           view.state.is_begun(),
           number(view.layout.rows),
           number(view.layout.cols),
           number(view.layout.batch),
           number(view.layout.replicas),
           static_cast<int64_t>(view.axes.size())};
  for (const Axis& axis : view.axes) known.push_back(number(axis));
  if (!param.is_nested()) add_sizes(view.sizes());
  for (const StateTensor& state : view.state.tensors) {
    known.push_back(static_cast<int64_t>(std::hash<std::string>()(state.name)));
    known.push_back(static_cast<int64_t>(state.tensor.scalar_type()));
    add_sizes(state.sizes);
  }
}

}  // namespace

bool Claims::are_of(const std::vector<std::size_t>& indices, const std::vector<ParameterGroup>& groups,
                    std::size_t parameters, Operation operation, const Axis& copies) const {
  if (indices != groups_ || parameters != known_.size() || operation != operation_ || copies.line != copies_.line) {
    return false;
  }
  for (std::size_t g = 0; g < indices.size(); ++g) {
    if (!differ_in_rates_at_most(groups[indices[g]].options.values, options_[g])) return false;
  }
  return true;
}

const std::vector<Claim>& Claims::of(const std::vector<const ParameterView*>& parameters,
                                     const std::vector<ParameterGroup>& groups, Properties optimizer,
                                     Operation operation, const Axis& copies) {
  std::vector<std::size_t> indices;
  for (const ParameterView* view : parameters) indices.push_back(view->group);
  std::ranges::sort(indices);
  indices.erase(std::unique(indices.begin(), indices.end()), indices.end());
  const std::size_t first = 1 + indices.size();
  bool has_changed = !are_of(indices, groups, parameters.size(), operation, copies);
  if (has_changed) {
    *this = {};
    all_.resize(first + parameters.size());
    all_.front() = {"the optimizer", {}, {}, /*is_parameter=*/false};
    groups_ = indices;
    known_.resize(parameters.size());
    operation_ = operation;
    copies_ = copies;
    for (std::size_t g = 0; g < indices.size(); ++g) {
      all_[1 + g] = {c10::str("parameter group ", indices[g]), {}, {}, /*is_parameter=*/false};
      options_.push_back(groups[indices[g]].options.values);
    }
  }
  all_.front().properties = std::move(optimizer);
  for (std::size_t g = 0; g < indices.size(); ++g) all_[1 + g].properties = properties_of(groups[indices[g]].options);
  std::vector<int64_t> now;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const ParameterView& view = *parameters[i];
    Claim& claim = all_[first + i];
    know(now, view);
    if (now != known_[i]) {
      claim = claim_of(view, groups[view.group].options, operation, copies);
      known_[i] = now;
      has_changed = true;
    }
    count_steps(claim, view, operation);
  }
  if (!has_changed) return all_;
  for (std::size_t c = 0; c < first; ++c) all_[c].axes.clear();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto group = std::ranges::lower_bound(indices, parameters[i]->group) - indices.begin();
    for (Claim* claim : {&all_[1 + group], &all_.front()}) {
      const std::vector<Axis>& axes = all_[first + i].axes;
      claim->axes.insert(claim->axes.end(), axes.begin(), axes.end());
    }
  }
  return all_;
}

}  // namespace torchdion::engine
