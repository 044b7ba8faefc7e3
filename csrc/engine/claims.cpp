#include "engine/claims.h"

#include <algorithm>
#include <limits>
#include <map>
#include <sstream>

#include "engine/checks.h"
#include "engine/matrix_form.h"
#include "engine/state.h"
#include "words.h"

namespace torchdion::engine {

namespace {

using Properties = std::vector<std::pair<std::string, std::string>>;

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

// True if a first step may make factors of it: a frozen parameter may have a form that no algorithm takes.
bool has_factors(const Held& held, const GroupOptions& group) {
  const MatrixForm form = form_of(group.values);
  return is_computed(held.dtype) && held.sizes[form.batch_dims] % form.blocks == 0;
}

// Dtypes, and the sizes of factors: those that there are, or else those that a first step makes.
std::string text_of_states(const Held& held, const GroupOptions& group, bool are_made) {
  std::string all;
  const auto dims = static_cast<int64_t>(held.sizes.size());
  for (const algorithms::State& state : algorithms::algorithm_of(dims, group.values).states) {
    const auto is_it = [&](const HeldState& one) { return one.name == state.name; };
    const auto found = std::find_if(held.states.begin(), held.states.end(), is_it);
    const bool is_there = found != held.states.end(), is_factor = state.shape == algorithms::StateShape::factor;
    if (!is_there && (!are_made || (is_factor && !has_factors(held, group)))) continue;
    std::vector<int64_t> sizes;
    if (is_factor) sizes = is_there ? found->sizes : whole_state_sizes(state, held.sizes, group.values);
    const at::ScalarType dtype = is_there ? found->dtype : group.values.dtype_or(state.dtype_option, held.dtype);
    all += (all.empty() ? "" : ", ") + text_of(std::string(state.name), dtype, sizes);
  }
  return all;
}

Claim claim_of(const Held& held, const GroupOptions& group, Operation operation) {
  const bool is_step = operation == Operation::step;
  Claim claim{held.name,
              {{"group", std::to_string(held.group)},
               {"shape", c10::str(at::IntArrayRef(held.sizes))},
               {"dtype", shown(held.dtype)},
               {"kind of device", held.device},
               {"layout", held.layout},
               {"requires_grad", shown(held.requires_grad)},
               {"steps taken", held.steps || is_step ? exact(held.steps.value_or(0)) : "none"},
               {"state", held.steps || is_step ? text_of_states(held, group, is_step) : "none"}},
              held.axes};
  if (!is_step) return claim;
  claim.gradient = held.gradient;
  claim.shared = held.shared;
  return claim;
}

}  // namespace

std::vector<Claim> claims_of(const std::vector<Held>& parameters, const std::vector<const GroupOptions*>& groups,
                             Properties optimizer, Operation operation) {
  Claim all{"the optimizer", std::move(optimizer), {}, /*is_parameter=*/false};
  std::map<std::size_t, Claim> of_groups;
  std::vector<Claim> each;
  for (const Held& held : parameters) {
    const auto [group, is_new] = of_groups.try_emplace(held.group);
    if (is_new) {
      group->second = {c10::str("parameter group ", held.group), properties_of(*groups[held.group]), {}, false};
    }
    each.push_back(claim_of(held, *groups[held.group], operation));
    for (Claim* claim : {&group->second, &all}) {
      claim->axes.insert(claim->axes.end(), held.axes.begin(), held.axes.end());
    }
  }
  std::vector<Claim> claims{std::move(all)};
  for (auto& [index, group] : of_groups) claims.push_back(std::move(group));
  claims.insert(claims.end(), each.begin(), each.end());
  return claims;
}

}  // namespace torchdion::engine
