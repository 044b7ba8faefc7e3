// The core of an optimizer, whose methods those of torchdion.optimizer call.
#include <torch/csrc/autograd/python_variable.h>

#include "bindings/front.h"

namespace torchdion::bindings {

namespace {

// A core and the front that shows it an optimizer.
struct PythonCore {
  engine::Core core;
  PythonFront front;

  // Calls f() for a method of the optimizer.
  template <class F>
  auto call(py::handle optimizer, const F& f) {
    const PythonWords words;
    front.optimizer = optimizer;
    const py::gil_scoped_release released;
    return f();
  }

  // Waits for what is in flight: there is no one to tell of an error.
  ~PythonCore() {
    const py::gil_scoped_release released;
    try {
      core.flush();
    } catch (const std::exception&) {
    }
  }
};

py::object as_python(const engine::Count& count) {
  if (count.on_devices.empty()) return py::cast(count.known);
  at::Tensor sum = count.on_devices.front();
  for (std::size_t i = 1; i < count.on_devices.size(); ++i) {
    sum = sum.add(count.on_devices[i].to(sum.device(), /*non_blocking=*/true));
  }
  return py::cast(count.known == 0 ? sum : sum.add(count.known));
}

py::dict as_python(const engine::Counts& counts) {
  return py::dict(py::arg("steps") = counts.steps, py::arg("skipped_steps") = as_python(counts.skipped),
                  py::arg("nonfinite_entries") = as_python(counts.nonfinite),
                  py::arg("columns_without_signal") = as_python(counts.without_signal),
                  py::arg("columns_in_margin") = as_python(counts.in_margin), py::arg("batches") = counts.batches,
                  py::arg("workspace_bytes") = counts.workspace_bytes,
                  py::arg("expected_traffic") = counts.expected_traffic);
}

engine::Count count_of(const py::handle& counted) {
  engine::Count count;
  if (THPVariable_Check(counted.ptr())) {
    count.add(THPVariable_Unpack(counted.ptr()));
  } else {
    count.known = counted.cast<int64_t>();
  }
  return count;
}

// A pickle keeps this of a core, in Python's own types.
py::dict as_python(const engine::Memory& memory) {
  return py::dict(py::arg("broken") = memory.broken, py::arg("counts") = as_python(memory.counts),
                  py::arg("decoupled") = memory.decoupled, py::arg("decoupled_as") = memory.decoupled_as,
                  py::arg("steps_when_equal") = memory.steps_when_equal);
}

engine::Memory memory_of(const py::dict& kept) {
  engine::Memory memory;
  memory.broken = kept["broken"].cast<std::string>();
  const py::dict counts = kept["counts"];
  memory.counts = {
      counts["steps"].cast<int64_t>(),           count_of(counts["skipped_steps"]),
      count_of(counts["nonfinite_entries"]),     count_of(counts["columns_without_signal"]),
      count_of(counts["columns_in_margin"]),     counts["batches"].cast<int64_t>(),
      counts["workspace_bytes"].cast<int64_t>(), counts["expected_traffic"].cast<std::map<std::string, int64_t>>()};
  memory.decoupled = kept["decoupled"].cast<bool>();
  for (const py::handle group : kept["decoupled_as"]) {
    engine::WhoseStates said;
    std::size_t i = 0;
    for (const py::handle value : group) {
      said.at(i) = value_of(*algorithms::option(engine::kSayWhose[i]), value);
      ++i;
    }
    memory.decoupled_as.push_back(said);
  }
  memory.steps_when_equal = kept["steps_when_equal"].cast<double>();
  return memory;
}

// The method of an optimizer that calls this one of its core.
template <class Result, class... Arguments>
auto method(Result (engine::Core::*called)(engine::Front&, Arguments...)) {
  return [called](PythonCore& self, const py::object& optimizer, Arguments... arguments) {
    return self.call(optimizer, [&] { return (self.core.*called)(self.front, arguments...); });
  };
}

py::list whole_states(PythonCore& self, const py::object& optimizer) {
  const auto states = method(&engine::Core::whole_states)(self, optimizer);
  py::list all;
  for (const engine::ParameterState& state : states) {
    py::dict tensors;
    for (const engine::StateTensor& one : state.tensors) tensors[py::str(one.name)] = one.tensor;
    all.append(tensors);
  }
  return all;
}

py::list owned_states(PythonCore& self, const py::object& optimizer) {
  const auto states = method(&engine::Core::owned_states)(self, optimizer);
  py::list all;
  for (const engine::OwnedState& one : states) {
    all.append(py::make_tuple(one.parameter, one.name, one.whole, one.begin));
  }
  return all;
}

void resize_rank(PythonCore& self, const py::object& optimizer, const py::dict& options) {
  const auto of_group = [&](std::size_t group) {
    const py::gil_scoped_acquire lock;
    return read_group(options, engine::group_name(group), /*whole=*/false).values;
  };
  self.call(optimizer, [&] { self.core.resize_rank(self.front, of_group); });
}

}  // namespace

void bind_core(py::module_& m) {
  using engine::Core;
  py::class_<PythonCore>(m, "Core")
      .def(py::init<>())
      .def("step", method(&Core::step))
      .def("make_states", method(&Core::make_states))
      .def("synchronize_for_checkpoint", method(&Core::synchronize_for_checkpoint))
      .def("check_replicas", method(&Core::check_replicas))
      .def("synchronize_replicas", method(&Core::synchronize_replicas))
      .def("whole_states", &whole_states)
      .def("owned_states", &owned_states)
      .def("resize_rank", &resize_rank)
      .def("decoupled_states", method(&Core::decoupled_states_of))
      .def("refuse_if_decoupled", method(&Core::refuse_if_decoupled))
      .def("loaded", method(&Core::loaded))
      .def("refuse_if_broken",
           [](PythonCore& self, const py::object& optimizer) {
             self.call(optimizer, [&] { self.core.refuse_if_broken(); });
           })
      .def("flush",
           [](PythonCore& self, const py::object& optimizer) { self.call(optimizer, [&] { self.core.flush(); }); })
      .def("show_parameters",
           [](PythonCore& self, const py::list& groups) { self.front.show_parameters(self.core, groups); })
      .def("show_contents", [](PythonCore& self, const py::list& contents,
                               bool is_volatile) { self.front.show_contents(self.core, contents, is_volatile); })
      .def("parameters_changed", [](PythonCore& self) { self.core.parameters_changed(); })
      .def_property(
          "memory", [](const PythonCore& self) { return as_python(self.core.memory()); },
          [](PythonCore& self, const py::dict& memory) { self.core.remember(memory_of(memory)); })
      .def_property_readonly("counts", [](const PythonCore& self) { return as_python(self.core.memory().counts); })
      .def_property_readonly("has_in_flight", [](const PythonCore& self) { return self.core.has_in_flight(); });
}

}  // namespace torchdion::bindings
