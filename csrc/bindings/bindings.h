// The pybind11 tables: what the Python front calls.
#pragma once

#include <pybind11/functional.h>
#include <torch/csrc/utils/pybind.h>

#include <optional>
#include <string>

#include "engine/parameter.h"
#include "words.h"

namespace torchdion::bindings {

namespace py = pybind11;

// The class or function of Python that the program called, as sentences call it: "torchdion.Dion".
std::string& front();

// Of every call that the library may refuse.
struct PythonWords {
  Speaking python{{front(), Language::python}};
};

// The options of a group, checked. Of a whole one none may be missing; `where` names it in sentences.
engine::GroupOptions read_group(const py::dict& group, const std::string& where, bool whole);

// A value of one of Python's own types, where some option may be of it; a text is the object's own.
std::optional<algorithms::Value> plain_value_of(py::handle given);
// The value of an option that was read from a program.
algorithms::Value value_of(const algorithms::Option& option, py::handle given);
// The tensors of a state by their names, with the sizes of the whole ones.
py::dict to_python(const engine::ParameterState& state);

void bind_core(py::module_& m);
void bind_options(py::module_& m);
void bind_layout(py::module_& m);
void bind_states(py::module_& m);
void bind_others(py::module_& m);
void bind_routing(py::module_& m);

}  // namespace torchdion::bindings
