#include "bindings/front.h"

#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <array>
#include <unordered_set>

#include "algorithms/all.h"
#include "engine/checks.h"

namespace torchdion::bindings {

using engine::ParameterView;

namespace {

// Numbers, flags and texts, whose values stay what they are.
bool is_immutable(PyObject* value) {
  if (PyTuple_CheckExact(value)) {
    const auto items = py::reinterpret_borrow<py::tuple>(value);
    return std::all_of(items.begin(), items.end(), [](py::handle item) { return is_immutable(item.ptr()); });
  }
  return value == Py_None || PyBool_Check(value) || PyFloat_CheckExact(value) || PyLong_CheckExact(value) ||
         PyUnicode_CheckExact(value);
}

bool has_changing_options(PyObject* group) {
  PyObject *key = nullptr, *value = nullptr;
  for (Py_ssize_t position = 0; PyDict_Next(group, &position, &key, &value);) {
    if (is_immutable(value) || !PyUnicode_Check(key)) continue;
    const char* name = PyUnicode_AsUTF8(key);
    if (!name) PyErr_Clear();
    if (name && algorithms::option(name)) return true;
  }
  return false;
}

const char* name_of(engine::Operation operation) {
  if (operation == engine::Operation::resize_rank) return "resize_rank";
  return operation == engine::Operation::whole_state_dict ? "whole_state_dict" : "another";
}

py::object attribute(py::handle object, const char* name) { return py::getattr(object, name, py::none()); }

// A gradient that lies as its parameter does and that kernels can read.
bool is_plain(const at::Tensor& gradient) {
  return !gradient.unsafeGetTensorImpl()->is_python_dispatch() && gradient.layout() == at::kStrided &&
         !gradient.is_nested() && engine::is_computed(gradient.scalar_type());
}

// Whether something holds for all items of a list, or for the keys and values of a dict, in their order; after the
// first for which it does not hold none is looked at.
bool all_of_items(PyObject* container, const auto& holds) {
  if (PyList_Check(container)) {
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(container); ++i) {
      if (!holds(PyList_GET_ITEM(container, i))) return false;
    }
    return true;
  }
  PyObject *key = nullptr, *value = nullptr;
  for (Py_ssize_t position = 0; PyDict_Next(container, &position, &key, &value);) {
    if (!holds(key) || !holds(value)) return false;
  }
  return true;
}

// Options that say how parameters and states lie.
constexpr std::array kForms = {"algorithm",    "scalar_algorithm", "batch_dims", "blocks",
                               "fan_in_first", "orientation",      "owners"};

// This rank's piece of a gradient that lies as a parameter of this DTensorSpec does; none: Python is to find it.
std::optional<at::Tensor> piece_of(const at::Tensor& gradient, const py::object& spec) {
  const auto shown = py::reinterpret_steal<py::object>(THPVariable_Wrap(gradient));
  const py::object own = attribute(shown, "_spec");
  if (!own.is(spec) && (own.is_none() || !own.equal(spec))) return std::nullopt;
  const py::object local = attribute(shown, "_local_tensor");
  if (!THPVariable_CheckExact(local.ptr()) || !is_plain(THPVariable_Unpack(local.ptr()))) return std::nullopt;
  return THPVariable_Unpack(local.ptr());
}

// Others may have put a parameter into groups again: two updates of it at once.
void refuse_twice(const engine::Core& core) {
  std::unordered_set<const void*> known;
  for (const engine::ParameterGroup& group : core.groups) {
    for (const ParameterView& view : group.parameters) {
      TORCH_CHECK_VALUE(known.insert(view.param.unsafeGetTensorImpl()).second, prefix(), view.name, " is given twice");
    }
  }
}

}  // namespace

SeenObject::SeenObject(PyObject* object) : address_(object), is_weak_(THPVariable_Check(object)) {
  if (PyList_Check(object)) return;  // of parameters, which are looked at one by one
  kept_ = is_weak_ ? py::reinterpret_steal<py::object>(PyWeakref_NewRef(object, nullptr))
                   : py::reinterpret_borrow<py::object>(object);
}

bool SeenObject::is(PyObject* object) const {
  if (object != address_ || !is_weak_) return object == address_;
#if PY_VERSION_HEX >= 0x030D0000
  PyObject* alive = nullptr;
  PyWeakref_GetRef(kept_.ptr(), &alive);
  Py_XDECREF(alive);
  return alive == object;
#else
  return PyWeakref_GET_OBJECT(kept_.ptr()) == object;
#endif
}

void SeenContainer::see(PyObject* container) {
  items_.clear();
  all_of_items(container, [&](PyObject* item) {
    items_.emplace_back(item);
    return true;
  });
}

bool SeenContainer::is_same(PyObject* container) const {
  const bool is_list = PyList_Check(container);
  if (!is_list && !PyDict_Check(container)) return false;
  const Py_ssize_t count = is_list ? PyList_GET_SIZE(container) : 2 * PyDict_GET_SIZE(container);
  auto seen = items_.begin();
  return count == static_cast<Py_ssize_t>(items_.size()) &&
         all_of_items(container, [&](PyObject* item) { return (seen++)->is(item); });
}

bool PythonFront::has_other_groups() const {
  if (!is_looked_at_) return true;
  const py::object groups = optimizer.attr("param_groups");
  if (!list_of_groups_.is_same(groups.ptr())) return true;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    if (groups_[g].is_volatile || !groups_[g].dict.is_same(PyList_GET_ITEM(groups.ptr(), g))) return true;
  }
  return false;
}

void PythonFront::see_groups() {
  const py::list groups = optimizer.attr("param_groups");
  list_of_groups_.see(groups.ptr());
  groups_.resize(groups.size());
  for (std::size_t g = 0; g < groups.size(); ++g) {
    groups_[g].dict.see(groups[g].ptr());
    groups_[g].is_volatile = has_changing_options(groups[g].ptr());
  }
}

bool PythonFront::has_other_parameters(const engine::Core& core) const {
  if (!is_shown_ || is_volatile_ || core.has_lost()) return true;
  const py::object groups = optimizer.attr("param_groups");
  if (!PyList_Check(groups.ptr()) || PyList_GET_SIZE(groups.ptr()) != static_cast<Py_ssize_t>(groups_.size()))
    return true;
  static const py::str params("params");
  auto seen = parameters_.begin();
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    PyObject* list = PyDict_GetItem(PyList_GET_ITEM(groups.ptr(), g), params.ptr());
    if (!list || !groups_[g].params.is_same(list)) return true;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); ++i, ++seen) {
      const py::handle param = PyList_GET_ITEM(list, i);
      if (!seen->is_complete && THPVariable_Unpack(param.ptr()).grad().defined()) return true;
      if (!seen->local) continue;
      if (!seen->local->is(attribute(param, "_local_tensor").ptr()) || !attribute(param, "_spec").is(seen->spec)) {
        return true;
      }
    }
  }
  return false;
}

bool PythonFront::has_other_states() const {
  const py::object state = optimizer.attr("state");
  if (!PyDict_Check(state.ptr()) || PyDict_GET_SIZE(state.ptr()) != static_cast<Py_ssize_t>(states_.size()))
    return true;
  PyObject *key = nullptr, *value = nullptr;
  auto seen = states_.begin();
  for (Py_ssize_t position = 0; PyDict_Next(state.ptr(), &position, &key, &value); ++seen) {
    if (!seen->first.is(key) || !seen->second.is_same(value)) return true;
  }
  return false;
}

void PythonFront::update(engine::Core& core, engine::Operation operation) {
  const py::gil_scoped_acquire lock;
  const bool is_step = operation == engine::Operation::step;
  const bool others = has_other_parameters(core);
  if (others) {
    is_shown_ = false;
    optimizer.attr("_show_parameters")();
  }
  bool contents = others || has_other_states();
  const bool capturable = py::object(optimizer.attr("defaults")["capturable"]).is(py::bool_(true));
  if (others || !is_step || capturable != core.capturable || has_other_groups()) {
    optimizer.attr("_look_at_groups")(name_of(operation));
    contents = read_groups(core) || contents;
    core.capturable = capturable;
    is_looked_at_ = operation != engine::Operation::resize_rank;  // which has put off to look at ranks
  }
  const auto is_incomplete = [](const SeenParameter& seen) { return !seen.is_complete; };
  if (contents || (!is_step && std::any_of(parameters_.begin(), parameters_.end(), is_incomplete))) {
    is_shown_ = false;
    optimizer.attr("_show_contents")();
    is_shown_ = true;
  }
}

// Reads the options of all groups. True if one has changed that says how parameters and states lie.
bool PythonFront::read_groups(engine::Core& core) {
  const py::list groups = optimizer.attr("param_groups");
  bool has_changed = false;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    engine::GroupOptions options = read_group(groups[g], engine::group_name(g), /*whole=*/true);
    const auto is_other = [&](const char* name) {
      return !core.groups[g].options.values.has(name) ||
             options.values.at(name) != core.groups[g].options.values.at(name);
    };
    has_changed = has_changed || std::any_of(kForms.begin(), kForms.end(), is_other);
    core.groups[g].options = std::move(options);
  }
  see_groups();
  if (!core.groups.empty()) {
    core.nonfinite = algorithms::enumerator<Nonfinite>(algorithms::option("nonfinite")->allowed.choices,
                                                       core.groups.front().options.values.text("nonfinite"));
  }
  std::vector<const algorithms::Options*> all;
  for (const engine::ParameterGroup& group : core.groups) all.push_back(&group.options.values);
  engine::check_alike(all, "");
  optimizer.attr("_check_beside_table")();
  return has_changed;
}

void PythonFront::show_parameters(engine::Core& core, const py::list& groups) {
  std::vector<engine::ParameterGroup> all;
  std::vector<SeenParameter> seen;
  bool has_changed = groups.size() != core.groups.size();
  static const py::str params("params");
  const py::list own = optimizer.attr("param_groups");
  groups_.resize(groups.size());
  for (std::size_t g = 0; g < groups.size(); ++g) {
    all.emplace_back();
    if (!has_changed) all.back().options = core.groups[g].options;
    groups_[g].params.see(PyDict_GetItem(own[g].ptr(), params.ptr()));
    for (const py::handle member : groups[g]) {
      const auto one = py::reinterpret_borrow<py::tuple>(member);
      ParameterView view;
      view.param = view.tensor = THPVariable_Unpack(one[0].ptr());
      view.name = one[1].cast<std::string>();
      view.index = one[2].cast<int64_t>();
      view.group = g;
      view.axes = one[3].cast<std::vector<Axis>>();
      view.lies = one[4].cast<std::string>();
      seen.emplace_back().index = view.index;
      all.back().parameters.push_back(std::move(view));
    }
    const auto is_same = [](const ParameterView& a, const ParameterView& b) { return a.param.is_same(b.param); };
    has_changed = has_changed || !std::ranges::equal(all[g].parameters, core.groups[g].parameters, is_same);
  }
  core.groups = std::move(all);
  parameters_ = std::move(seen);
  if (has_changed) core.parameters_changed();
}

void PythonFront::show_contents(engine::Core& core, const py::list& contents, bool is_volatile) {
  refuse_twice(core);
  std::size_t next = 0;
  for (engine::ParameterGroup& group : core.groups) {
    for (ParameterView& view : group.parameters) {
      const py::tuple one = contents[next];
      SeenParameter& seen = parameters_[next++];
      seen.is_complete = one[0].cast<bool>();
      view.tensor = THPVariable_Unpack(one[1].ptr());
      view.layout = one[2].cast<Layout>();
      if (!one[3].is_none()) {
        const py::tuple of_dtensor = one[3];
        seen.local.emplace(py::object(of_dtensor[0]).ptr());
        seen.spec = of_dtensor[1];
      }
      view.state = {};
      if (one[4].is_none()) continue;
      for (const auto& [name, value] : py::reinterpret_borrow<py::dict>(one[4])) {
        const auto state = py::reinterpret_borrow<py::tuple>(value);
        const auto key = name.cast<std::string>();
        if (key == "step") {
          view.state.step = THPVariable_Unpack(state[0].ptr());
        } else {
          view.state.set(key, THPVariable_Unpack(state[0].ptr()), state[1].cast<std::vector<int64_t>>());
        }
      }
    }
  }
  is_volatile_ = is_volatile;
  core.all_shown();
  const py::object states = optimizer.attr("state");
  states_.clear();
  PyObject *key = nullptr, *value = nullptr;
  for (Py_ssize_t position = 0; PyDict_Next(states.ptr(), &position, &key, &value);) {
    states_.emplace_back(SeenObject(key), SeenContainer());
    if (PyDict_Check(value)) states_.back().second.see(value);
  }
}

engine::GradientScaling PythonFront::scaling() {
  const py::gil_scoped_acquire lock;
  if (attribute(optimizer, "grad_scale").is_none() && attribute(optimizer, "found_inf").is_none()) return {};
  const py::tuple both = optimizer.attr("_gradient_scaling")();
  const auto tensor = [](const py::object& number) {
    return number.is_none() ? at::Tensor() : THPVariable_Unpack(number.ptr());
  };
  return {tensor(both[0]), tensor(both[1])};
}

std::vector<at::Tensor> PythonFront::gradients(const engine::Core& core) {
  const py::gil_scoped_acquire lock;
  std::vector<at::Tensor> all;
  all.reserve(parameters_.size());
  auto seen = parameters_.begin();
  for (const engine::ParameterGroup& group : core.groups) {
    for (const ParameterView& view : group.parameters) {
      const SeenParameter& of_view = *seen++;
      const at::Tensor& gradient = view.param.grad();
      if (!gradient.defined()) {
        all.emplace_back();
        continue;
      }
      if (of_view.local) {
        if (const std::optional<at::Tensor> piece = piece_of(gradient, of_view.spec)) {
          all.push_back(piece->numel() == 0 ? piece->view(view.tensor.sizes()) : *piece);
          continue;
        }
      } else if (is_plain(gradient) && view.param.is_same(view.tensor)) {
        all.push_back(gradient);
        continue;
      }
      const py::object local = optimizer.attr("_local_gradient")(view.param, view.name, view.tensor.sizes().vec());
      all.push_back(THPVariable_Unpack(local.ptr()));
    }
  }
  return all;
}

void PythonFront::keep(const ParameterView& view) {
  const py::gil_scoped_acquire lock;
  optimizer.attr("_keep")(view.param, view.group, to_python(view.state));
}

void PythonFront::require(const ParameterView& view) {
  const auto seen = std::find_if(parameters_.begin(), parameters_.end(),
                                 [&](const SeenParameter& one) { return one.index == view.index; });
  if (seen->is_complete) return;
  const py::gil_scoped_acquire lock;
  optimizer.attr("_require")(view.param, view.group, view.name);
}

void PythonFront::open_groups(const std::vector<Axis>& axes) {
  if (axes.empty()) return;
  const py::gil_scoped_acquire lock;
  optimizer.attr("_open_groups")(axes);
}

void PythonFront::written(const std::vector<const ParameterView*>& views) {
  for (const ParameterView* view : views) {  // of a DTensor the piece alone was written
    if (!view->param.is_same(view->tensor) && !view->param.is_inference()) {
      view->param.unsafeGetTensorImpl()->bump_version();
    }
  }
  if (!is_volatile_) return;
  const py::gil_scoped_acquire lock;
  optimizer.attr("_written")();
}

void PythonFront::warn(const std::string& sentence) {
  const py::gil_scoped_acquire lock;
  py::module_::import("torchdion.warning").attr("warn")(sentence);
}

}  // namespace torchdion::bindings
