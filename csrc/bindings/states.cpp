// The costs of parameters in a step, and the states that a checkpoint gives them.
#include <ATen/ops/empty.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torchdion/layout.h>

#include "bindings/bindings.h"
#include "engine/loaded_state.h"
#include "engine/parameter_costs.h"

namespace torchdion::bindings {

namespace {

// By the names of axes.
py::dict cost_of(const engine::ParameterCost& cost) {
  const Layout& layout = cost.layout;
  py::dict elements, bytes;
  const auto add = [&](const Axis& axis, const algorithms::AxisCost& of_axis) {
    if (axis.absent()) return;
    elements[py::str(axis.name())] = of_axis.elements;
    bytes[py::str(axis.name())] = of_axis.bytes;
  };
  add(layout.rows, cost.cost.rows);
  add(layout.cols, cost.cost.cols);
  add(layout.replicas, cost.cost.replicas);
  add(layout.copies, cost.cost.copies);
  return py::dict(py::arg("group") = cost.group, py::arg("parameter") = cost.parameter,
                  py::arg("decoupled") = cost.decoupled, py::arg("state_bytes") = cost.state_bytes,
                  py::arg("flops") = cost.cost.operations, py::arg("memory_bytes") = cost.cost.memory_bytes,
                  py::arg("elements") = elements, py::arg("bytes") = bytes);
}

// A parameter of a plan: its whole sizes, its dtype, the sizes of this rank's piece, and where that lies.
using PlannedParameter = std::tuple<std::vector<int64_t>, at::ScalarType, std::vector<int64_t>, Layout>;

py::list costs(const std::vector<std::pair<engine::GroupOptions, std::vector<PlannedParameter>>>& groups) {
  std::vector<engine::ParameterGroup> all;
  for (const auto& [options, parameters] : groups) {
    all.push_back({options, {}});
    for (const auto& [sizes, dtype, piece, layout] : parameters) {
      const at::TensorOptions like = at::TensorOptions(at::kMeta).dtype(dtype);
      all.back().parameters.push_back(
          {.name = {}, .param = at::empty(sizes, like), .tensor = at::empty(piece, like), .layout = layout});
    }
  }
  py::list found;
  for (const engine::ParameterCost& cost : engine::costs_of(std::move(all))) found.append(cost_of(cost));
  return found;
}

// A saved state as Python shows it: its count and how that is shown, what its momentum is to be divided by, and by name
// its tensors, with the whole sizes of pieces and the begin of owners' parts.
using SavedTensors =
    std::map<std::string, std::tuple<at::Tensor, std::optional<std::vector<int64_t>>, std::optional<int64_t>>>;
using Saved = std::tuple<double, std::string, double, SavedTensors>;

engine::SavedState state_of(const Saved& shown) {
  engine::SavedState saved;
  SavedTensors tensors;
  std::tie(saved.step, saved.shown_step, saved.divisor, tensors) = shown;
  for (const std::string_view name : algorithms::states()) {
    const auto found = tensors.find(std::string(name));
    if (found == tensors.end()) continue;
    const auto& [tensor, whole, begin] = found->second;
    saved.tensors.push_back({found->first, tensor, whole, begin});
  }
  return saved;
}

// A parameter that may take a state: the program's tensor, this rank's piece of it, where that lies, its name in
// sentences, and the state; none: it takes none.
using Taker = std::tuple<at::Tensor, at::Tensor, Layout, std::string, std::optional<Saved>>;

// The states that all parameters take, in their order: by name their tensors, with their whole sizes.
py::list loaded_states(const std::vector<std::pair<engine::GroupOptions, std::vector<Taker>>>& groups) {
  std::vector<engine::ParameterGroup> all;
  for (const auto& [options, takers] : groups) {
    all.push_back({options, {}});
    for (const auto& [param, piece, layout, name, saved] : takers) {
      all.back().parameters.push_back({.name = name, .param = param, .tensor = piece, .layout = layout});
    }
  }
  std::vector<const algorithms::Options*> options;
  for (const engine::ParameterGroup& group : all) options.push_back(&group.options.values);
  engine::check_alike(options, " of the state dict");
  engine::resolve(all);
  py::list states;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (std::size_t i = 0; i < all[g].parameters.size(); ++i) {
      const std::optional<Saved>& saved = std::get<4>(groups[g].second[i]);
      const auto load = [&] { return engine::loaded(state_of(*saved), all[g].parameters[i], all[g].options.values); };
      states.append(saved ? py::object(to_python(load())) : py::none());
    }
  }
  return states;
}

}  // namespace

py::dict to_python(const engine::ParameterState& state) {
  py::dict tensors(py::arg("step") = py::make_tuple(state.step, std::vector<int64_t>()));
  for (const engine::StateTensor& one : state.tensors) {
    tensors[py::str(one.name)] = py::make_tuple(one.tensor, one.sizes);
  }
  return tensors;
}

void bind_states(py::module_& m) {
  m.def("costs", &costs, py::arg("groups"), py::call_guard<PythonWords>());
  m.def("loaded_states", &loaded_states, py::arg("groups"), py::call_guard<PythonWords>());
}

}  // namespace torchdion::bindings
