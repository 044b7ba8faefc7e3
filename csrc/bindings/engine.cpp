// Groups, plans, steps and states.
#include <torchdion/layout.h>

#include "bindings/bindings.h"
#include "engine/checks.h"
#include "engine/cuts.h"
#include "engine/loaded_state.h"
#include "engine/parameter_costs.h"
#include "engine/shapes.h"
#include "engine/state.h"
#include "engine/state_owners.h"
#include "engine/step.h"

namespace torchdion::bindings {

namespace {

using Tensors = std::vector<at::Tensor>;

// What a parameter costs, by the names of axes.
py::dict as_python(const engine::ParameterCost& cost) {
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

void bind_plan(py::module_& m) {
  m.def(
      "costs",
      [](const engine::Groups& groups) {
        py::list costs;
        for (const engine::ParameterCost& cost : engine::costs_of(engine::SharedGroups(groups))) {
          costs.append(as_python(cost));
        }
        return costs;
      },
      py::arg("groups"), py::call_guard<PythonWords>());
}

const algorithms::State& state_of(const std::string& algorithm, const std::string& name) {
  const algorithms::Algorithm& of = algorithms::algorithm(algorithm);
  return of.states[algorithms::index_of(of, std::string_view(name))];
}

py::dict as_python(const engine::Cuts& cuts) {
  py::dict sides;
  const auto add = [&](const char* side, int64_t dim) {
    if (dim >= 0) sides[side] = dim;
  };
  add("rows", cuts.rows);
  add("cols", cuts.cols);
  add("batch", cuts.batch);
  return sides;
}

// States by the name of an algorithm and their own, whole sizes of parameters, and the options of their groups.
void bind_state(py::module_& m) {
  m.def(
      "matrix_sizes",
      [](std::vector<int64_t> sizes, const engine::GroupOptions& options) {
        return engine::matrix_sizes(sizes, engine::form_of(options.values));
      },
      py::arg("sizes"), py::arg("options"), py::call_guard<PythonWords>());
  m.def("check_blocks", &engine::check_blocks, py::arg("rows"), py::arg("blocks"), py::arg("whose"),
        py::call_guard<PythonWords>());
  m.def(
      "whole_state_sizes",
      [](const std::string& algorithm, const std::string& name, std::vector<int64_t> sizes,
         const engine::GroupOptions& options) {
        return engine::whole_state_sizes(state_of(algorithm, name), sizes, options.values);
      },
      py::arg("algorithm"), py::arg("name"), py::arg("sizes"), py::arg("options"), py::call_guard<PythonWords>());
  m.def(
      "piece_of_state_sizes",
      [](const std::string& algorithm, const std::string& name, std::vector<int64_t> sizes, std::vector<int64_t> local,
         const engine::GroupOptions& options, const Layout& layout) {
        return engine::piece_of_state_sizes(state_of(algorithm, name), sizes, local, options.values, layout);
      },
      py::arg("algorithm"), py::arg("name"), py::arg("sizes"), py::arg("local"), py::arg("options"), py::arg("layout"),
      py::call_guard<PythonWords>());
  m.def(
      "check_state_names",
      [](const std::string& algorithm, const std::vector<std::string>& names, std::vector<int64_t> sizes,
         const std::string& name) { engine::check_state_names(algorithms::algorithm(algorithm), names, sizes, name); },
      py::arg("algorithm"), py::arg("names"), py::arg("sizes"), py::arg("name"), py::call_guard<PythonWords>());
  m.def("check_loaded_tensor", &engine::check_loaded_tensor, py::arg("tensor"), py::arg("state"), py::arg("name"),
        py::call_guard<PythonWords>());
  m.def("check_loaded_step", &engine::check_loaded_step, py::arg("count"), py::arg("got"), py::arg("name"),
        py::call_guard<PythonWords>());
  m.def(
      "check_loaded_sizes",
      [](const std::string& algorithm, const std::string& state, std::vector<int64_t> loaded,
         std::vector<int64_t> sizes, const engine::GroupOptions& options, const std::string& name) {
        engine::check_loaded_sizes(state_of(algorithm, state), loaded, sizes, options.values, name);
      },
      py::arg("algorithm"), py::arg("state"), py::arg("loaded"), py::arg("sizes"), py::arg("options"), py::arg("name"),
      py::call_guard<PythonWords>());
  m.def("stored_as", &engine::stored_as, py::arg("state"), py::arg("dtype"), py::arg("device"));
  m.def(
      "check_cut",
      [](int64_t dim, std::vector<int64_t> sizes, const engine::GroupOptions& options, const std::string& name) {
        engine::check_cut(dim, sizes, options.values, name);
      },
      py::arg("dim"), py::arg("sizes"), py::arg("options"), py::arg("name"), py::call_guard<PythonWords>());
  m.def(
      "cuts_of_parameter",
      [](int64_t dims, const engine::GroupOptions& options) {
        return as_python(engine::cuts_of_parameter(dims, options.values));
      },
      py::arg("dims"), py::arg("options"));
  m.def(
      "cuts_of_state",
      [](const std::string& algorithm, const std::string& name, std::vector<int64_t> sizes,
         std::vector<int64_t> parameter, const engine::GroupOptions& options) {
        const engine::Cuts cuts = engine::cuts_of_parameter(static_cast<int64_t>(parameter.size()), options.values);
        const algorithms::State& state = state_of(algorithm, name);
        const bool right =
            state.shape == algorithms::StateShape::factor && engine::is_right(sizes, parameter, options.values);
        return as_python(engine::cuts_of_state(state, static_cast<int64_t>(sizes.size()), cuts, right));
      },
      py::arg("algorithm"), py::arg("name"), py::arg("sizes"), py::arg("parameter"), py::arg("options"),
      py::call_guard<PythonWords>());
  m.def(
      "check_layout",
      [](const std::string& algorithm, std::vector<int64_t> sizes, const std::vector<std::vector<int64_t>>& factors,
         const engine::GroupOptions& options, const Layout& layout, const std::string& name) {
        engine::check_layout(algorithms::algorithm(algorithm), sizes, factors, options.values, layout, name);
      },
      py::arg("algorithm"), py::arg("sizes"), py::arg("factors"), py::arg("options"), py::arg("layout"),
      py::arg("name"), py::call_guard<PythonWords>());
}

// Parameters by their groups' places and their whole sizes, states by theirs.
void bind_state_owners(py::module_& m) {
  m.def(
      "shares_of",
      [](const std::vector<std::pair<std::size_t, std::vector<int64_t>>>& parameters,
         const std::vector<engine::GroupOptions>& options, const Axis& axis) {
        std::vector<engine::Owned> owned;
        for (const auto& [group, sizes] : parameters) owned.push_back({group, sizes, &options[group].values, axis});
        return engine::shares_of(owned);
      },
      py::arg("parameters"), py::arg("options"), py::arg("axis"), py::call_guard<PythonWords>());
  m.def(
      "owned_sizes",
      [](std::vector<int64_t> state, std::vector<int64_t> parameter, const Axis& axis, const comm::Shares& shares) {
        return engine::owned_sizes(state, parameter, comm::own_share(axis, shares));
      },
      py::arg("state"), py::arg("parameter"), py::arg("axis"), py::arg("shares"));
  m.def(
      "owned_part",
      [](const at::Tensor& state, std::vector<int64_t> parameter, const Axis& axis, const comm::Shares& shares) {
        return engine::owned_part(state, parameter, comm::own_share(axis, shares));
      },
      py::arg("state"), py::arg("parameter"), py::arg("axis"), py::arg("shares"));
}

}  // namespace

void bind_engine(py::module_& m) {
  py::enum_<Nonfinite>(m, "Nonfinite")
      .value("propagate", Nonfinite::propagate)
      .value("zero", Nonfinite::zero)
      .value("skip_step", Nonfinite::skip_step)
      .value("raise", Nonfinite::raise);
  py::class_<engine::Groups>(m, "Groups")
      .def(py::init([](bool capturable) {
             engine::Groups groups;
             groups.capturable = capturable;
             return groups;
           }),
           py::arg("capturable") = false)
      .def(
          "add",
          [](engine::Groups& self, const std::string& algorithm, const engine::GroupOptions& options, Tensors X,
             Tensors G, std::vector<Tensors> states, Tensors steps, std::vector<Layout> layouts,
             std::vector<std::vector<std::vector<int64_t>>> whole_factors, std::vector<comm::Shares> shares) {
            engine::Group group =
                engine::group_of(algorithms::algorithm(algorithm), options, X.front().device().type());
            group.X = std::move(X);
            group.G = std::move(G);
            group.states = std::move(states);
            group.steps = std::move(steps);
            group.layouts = std::move(layouts);
            group.whole_factors = std::move(whole_factors);
            group.shares = std::move(shares);
            self.all.push_back(std::move(group));
          },
          py::arg("algorithm"), py::arg("options"), py::arg("X"), py::arg("G"), py::arg("states"), py::arg("steps"),
          py::arg("layouts") = std::vector<Layout>(),
          py::arg("whole_factors") = std::vector<std::vector<std::vector<int64_t>>>(),
          py::arg("shares") = std::vector<comm::Shares>());
  py::class_<engine::Step>(m, "Step")
      .def(py::init([](engine::Groups groups, Nonfinite nonfinite) {
             return std::make_unique<engine::Step>(std::move(groups), nonfinite);
           }),
           py::arg("groups"), py::arg("nonfinite"), py::call_guard<PythonWords>())
      .def(
          "run", [](engine::Step& self) { self.run(); }, py::call_guard<py::gil_scoped_release, PythonWords>());
  bind_plan(m);
  bind_state(m);
  bind_state_owners(m);
}

}  // namespace torchdion::bindings
