// An optimizer's parameters and their states, as its front shows them to the engine.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/accumulate.h>
#include <torchdion/layout.h>

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "engine/cuts.h"
#include "engine/groups.h"
#include "engine/state_owners.h"

namespace torchdion::engine {

// A tensor of a parameter's state.
struct StateTensor {
  std::string name;
  at::Tensor tensor;           // this rank's
  std::vector<int64_t> sizes;  // over all ranks
};

// The state of a parameter: what is ours of it, without what programs keep beside.
struct ParameterState {
  at::Tensor step;                   // how many steps it has taken, one number
  std::vector<StateTensor> tensors;  // in the order of algorithms::states()
  bool is_checked = false;           // that it is of the parameter's algorithm, since it was shown

  // False before the first step, and before a state was loaded.
  bool is_begun() const { return step.defined() || !tensors.empty(); }
  // Null: there is none of this name.
  const StateTensor* find(std::string_view name) const;
  void set(std::string_view name, at::Tensor tensor, at::IntArrayRef sizes);
};

// A parameter.
struct ParameterView {
  std::string name;             // in sentences: "parameter 3 (parameter group 0)"
  int64_t index = 0;            // among all of the optimizer
  std::size_t group = 0;        // its parameter group
  at::Tensor param;             // as the program has it
  at::Tensor tensor;            // this rank's piece of it; of a whole one the same
  Layout layout;                // where the pieces lie
  std::vector<Axis> axes = {};  // of all ranks that hold the parameter, or pieces of it
  std::string lies = {};        // the layout in a sentence
  ParameterState state = {};
  // Of the optimizer's options, see Core::update():
  const algorithms::Algorithm* algorithm = nullptr;  // that updates it
  std::optional<Part> part = {};                     // under owners="shard": what this rank keeps states of

  // Over all ranks.
  at::IntArrayRef sizes() const { return layout.sizes.empty() ? tensor.sizes() : at::IntArrayRef(layout.sizes); }
  int64_t numel() const { return c10::multiply_integers(sizes()); }
};

struct ParameterGroup {
  GroupOptions options;
  std::vector<ParameterView> parameters;
};

// The parameters of all groups, in their order.
auto all_parameters(auto& groups) {
  using View = std::remove_reference_t<decltype(*groups.front().parameters.data())>;
  std::vector<std::reference_wrapper<View>> all;
  for (auto& group : groups) all.insert(all.end(), group.parameters.begin(), group.parameters.end());
  return all;
}

// " (parameter group 2)"
std::string group_name(std::size_t index);
// "parameter 3 (parameter group 2)"
std::string parameter_name(std::size_t index, std::size_t group);

// Whether the parameter neither asks for a gradient nor has one.
bool is_left_alone(const at::Tensor& param);
// Whether no step can compute with it, nor is asked to.
bool is_passed_over(const at::Tensor& param);

// Throws c10::ValueError or c10::NotImplementedError for a parameter with which no step can compute.
void check_trained(const at::Tensor& param, const std::string& name);
// Throws the same, and c10::ValueError for one whose matrices the options of its group do not tell apart.
void check_parameter(const at::Tensor& param, const algorithms::Options& group, const std::string& name);
// The same of all parameters of a group.
void check_parameters(const ParameterGroup& group);
// Throws c10::ValueError where a state is not that of the algorithm which updates the parameter, or more than that.
void check_state(ParameterView& view);

// Throws c10::ValueError where factors of the rank that the options ask for cannot follow the layout of a parameter of
// these whole sizes.
void check_factors(at::IntArrayRef sizes, const algorithms::Options& group, const Layout& layout,
                   const std::string& name);

// Gives each parameter the algorithm that updates it and what this rank owns of it, by the options of its group. Throws
// c10::ValueError where states have owners, for a parameter that is cut, or that lies on one rank where others lie on
// several.
void resolve(std::vector<ParameterGroup>& groups);

// The cuts of a state of these whole sizes.
Cuts cuts_of(const algorithms::State& state, at::IntArrayRef whole, const ParameterView& view,
             const algorithms::Options& group);

// The states of which each replica has its own.
std::vector<std::string> decoupled_states(const ParameterView& view, const algorithms::Algorithm& algorithm,
                                          const algorithms::Options& group);

}  // namespace torchdion::engine
