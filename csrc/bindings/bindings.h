// The pybind11 tables: what the Python front calls.
#pragma once

#include <pybind11/functional.h>
#include <torch/csrc/utils/pybind.h>

#include <string>

#include "words.h"

namespace torchdion::bindings {

namespace py = pybind11;

// The class or function of Python that the program called, as sentences call it: "torchdion.Dion".
std::string& front();

// Of every call that the library may refuse.
struct PythonWords {
  Speaking python{{front(), Language::python}};
};

void bind_options(py::module_& m);
void bind_layout(py::module_& m);
void bind_engine(py::module_& m);
void bind_routing(py::module_& m);

}  // namespace torchdion::bindings
