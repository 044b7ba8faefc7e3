// The table of options and algorithms, the options of a group, and what they make of its parameters.
#include <c10/util/Exception.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "algorithms/all.h"
#include "bindings/bindings.h"
#include "engine/cuts.h"
#include "engine/matrix_form.h"
#include "engine/parameter.h"
#include "engine/shapes.h"
#include "engine/state.h"
#include "engine/written_options.h"
#include "linalg/memory.h"
#include "routing/guesses.h"

namespace torchdion::bindings {

using algorithms::Option;
using algorithms::Value;

namespace {

// A number of Python's own; an integer where it has 64 bits.
std::optional<Value> number_of(py::handle given) {
  if (PyBool_Check(given.ptr())) return std::nullopt;
  if (PyFloat_Check(given.ptr())) return PyFloat_AS_DOUBLE(given.ptr());
  if (!PyLong_Check(given.ptr())) return std::nullopt;
  int overflow = 0;
  const long long integer = PyLong_AsLongLongAndOverflow(given.ptr(), &overflow);
  if (overflow != 0) return std::numeric_limits<double>::infinity();
  return static_cast<int64_t>(integer);
}

// Of whatever is used as Python's own values are. None: the option does not take it.
std::optional<Value> taken(const Option& option, py::handle given) {
  if (const auto value = plain_value_of(given)) return algorithms::accepted(option, *value);
  const bool is_pair = option.allowed.kind == algorithms::Allowed::Kind::pair;
  const py::object own = py::module_::import("torchdion.plain_values").attr(is_pair ? "plain_numbers" : "plain")(given);
  const auto value = own.is(given) ? std::nullopt : plain_value_of(own);
  return value ? algorithms::accepted(option, *value) : std::nullopt;
}

// A tensor on another device than the CPU is not looked at, which would make the host wait.
bool is_rate(const at::Tensor& tensor) {
  if (!linalg::has_memory(tensor) || tensor.numel() != 1 || tensor.is_complex()) return false;
  if (!tensor.is_cpu()) return true;
  const double number = tensor.item<double>();
  return std::isfinite(number) && number >= 0;
}

[[noreturn]] void refuse(const Option& option, py::handle given, const std::string& where) {
  auto shown = py::module_::import("torchdion.words").attr("shown")(given).cast<std::string>();
  const bool is_tensor = THPVariable_Check(given.ptr()) && linalg::has_memory(THPVariable_Unpack(given.ptr()));
  if (PyAnySet_Check(given.ptr()) || PyDict_Check(given.ptr()) || (is_tensor && !option.may_be_tensor)) {
    shown = c10::str("a ", Py_TYPE(given.ptr())->tp_name, ", ", shown);  // whose numbers may be allowed ones
  }
  TORCH_CHECK_VALUE(false, algorithms::refusal(option, shown, where));
}

// The value of an option, and the tensor that may be in its place.
Value read(const Option& option, py::handle given, const std::string& where, at::Tensor* tensor) {
  if (option.may_be_tensor && THPVariable_Check(given.ptr())) {
    at::Tensor rate = THPVariable_Unpack(given.ptr());
    if (!is_rate(rate)) refuse(option, given, where);
    if (tensor) *tensor = std::move(rate);
    return option.initial;
  }
  const std::optional<Value> value = taken(option, given);
  if (!value) refuse(option, given, where);
  return *value;
}

// In the order of the table.
const std::vector<PyObject*>& names_of_options() {
  static const std::vector<PyObject*> names = [] {
    std::vector<PyObject*> all;
    for (const Option& option : algorithms::options()) {
      all.push_back(PyUnicode_InternFromString(std::string(option.name).c_str()));
    }
    return all;
  }();
  return names;
}

constexpr std::array kReasons = {"of_others", "fixed", "kept"};  // of remarks, in the order of their enumeration

// Gives the group the options that only other algorithms have, as declared. It must have all others.
void complete(algorithms::Options& group, const std::string& where) {
  const bool has_rule = group.has("algorithm") && group.has("scalar_algorithm");
  for (const Option& option : algorithms::options()) {
    if (group.has(option.name)) continue;
    const bool is_of_others =
        has_rule && !option.of_optimizer &&
        !algorithms::group_has_option(group.text("algorithm"), group.text("scalar_algorithm"), option.name);
    TORCH_CHECK_VALUE(is_of_others, prefix(), option.name, " must be in the group, which lacks it", where);
    group.set(option.name, option.initial);
  }
}

py::dict described(const Option& option) {
  py::list algorithms;
  for (const algorithms::Algorithm* algorithm : algorithms::all()) {
    if (algorithms::has_option(*algorithm, option.name)) algorithms.append(algorithm->name);
  }
  return py::dict(py::arg("name") = option.name, py::arg("default") = option.initial,
                  py::arg("words") = algorithms::words_of(option), py::arg("doc") = option.doc,
                  py::arg("algorithms") = algorithms, py::arg("of_optimizer") = option.of_optimizer,
                  py::arg("of_run") = option.of_run, py::arg("of_ranks") = engine::is_of_ranks(option),
                  py::arg("may_be_tensor") = option.may_be_tensor);
}

py::dict described(const algorithms::State& state) {
  static constexpr const char* kShapes[] = {"like_parameter", "factor", "rows"};
  return py::dict(py::arg("name") = state.name, py::arg("shape") = kShapes[static_cast<std::size_t>(state.shape)],
                  py::arg("dtype_option") = state.dtype_option);
}

py::dict described(const algorithms::Algorithm& algorithm) {
  py::list states;
  for (const algorithms::State& state : algorithm.states) states.append(described(state));
  Value betas;
  py::dict docs;
  for (const Option& option : algorithm.options) {
    if (option.name == "betas") betas = option.initial;
    docs[py::str(option.name)] = option.doc;
  }
  return py::dict(py::arg("name") = algorithm.name, py::arg("takes_matrices") = algorithm.takes_matrices(),
                  py::arg("shares_among_copies") = algorithm.shares_among_copies, py::arg("states") = states,
                  py::arg("betas") = betas, py::arg("docs") = docs,
                  py::arg("precision") = algorithms::options_of(algorithm, {}).at("precision"));
}

// The options of a group as it was, but for values that none may have.
algorithms::Options options_before(const py::dict& group) {
  algorithms::Options options;
  auto name = names_of_options().begin();
  for (const Option& option : algorithms::options()) {
    PyObject* given = PyDict_GetItem(group.ptr(), *name++);
    if (const auto value = given ? taken(option, given) : std::nullopt) options.set(option.name, *value);
  }
  return options;
}

// Parameters with what is ours of their states.
std::vector<engine::ParameterView> parameters_with(const py::dict& states, const py::list& params) {
  std::vector<engine::ParameterView> views;
  for (const py::handle param : params) {
    if (!THPVariable_Check(param.ptr()) || THPVariable_Unpack(param.ptr()).is_nested()) continue;
    engine::ParameterView& view = views.emplace_back();
    view.param = view.tensor = THPVariable_Unpack(param.ptr());
    PyObject* state = PyDict_GetItem(states.ptr(), param.ptr());
    if (!state || !PyDict_Check(state)) continue;
    const auto own = py::reinterpret_borrow<py::dict>(state);
    for (const std::string_view name : algorithms::states()) {
      const py::str key{std::string(name)};
      if (!own.contains(key) || !THPVariable_Check(py::object(own[key]).ptr())) continue;
      const at::Tensor& tensor = THPVariable_Unpack(py::object(own[key]).ptr());
      if (!tensor.is_nested()) view.state.set(name, tensor, tensor.sizes());
    }
  }
  return views;
}

}  // namespace

std::optional<Value> plain_value_of(py::handle given) {
  if (given.is_none()) return Value();
  if (PyBool_Check(given.ptr())) return given.ptr() == Py_True;
  if (PyUnicode_Check(given.ptr())) {
    Py_ssize_t size = 0;
    const char* text = PyUnicode_AsUTF8AndSize(given.ptr(), &size);
    if (!text) PyErr_Clear();  // a lone surrogate
    return text ? std::optional<Value>(std::string_view(text, size)) : std::nullopt;
  }
  if (THPDtype_Check(given.ptr())) {
    const std::string_view name = algorithms::name_of(reinterpret_cast<THPDtype*>(given.ptr())->scalar_type);
    return name.empty() ? std::nullopt : std::optional<Value>(name);
  }
  if (PyTuple_Check(given.ptr()) && py::len(given) == 2) {
    const auto both = py::reinterpret_borrow<py::tuple>(given);
    const std::optional<Value> first = number_of(both[0]), second = number_of(both[1]);
    if (!first || !second) return std::nullopt;
    const auto number = [](const Value& value) {
      const auto* integer = std::get_if<int64_t>(&value);
      return integer ? static_cast<double>(*integer) : std::get<double>(value);
    };
    return algorithms::Pair{number(*first), number(*second)};
  }
  return number_of(given);
}

engine::GroupOptions read_group(const py::dict& group, const std::string& where, bool whole) {
  engine::GroupOptions options;
  auto name = names_of_options().begin();
  for (const Option& option : algorithms::options()) {
    PyObject* given = PyDict_GetItem(group.ptr(), *name++);
    if (!given) continue;
    at::Tensor* tensor = option.name == "lr" ? &options.lr : &options.weight_decay;
    options.values.set(option.name, read(option, given, where, tensor));
  }
  if (whole) complete(options.values, where);
  engine::check_combinations(options.values, where);
  return options;
}

Value value_of(const Option& option, py::handle given) { return read(option, given, "", nullptr); }

namespace {

using Sizes = std::vector<int64_t>;

// A parameter of these whole sizes is updated by it.
const algorithms::Algorithm& algorithm_under(const engine::GroupOptions& group, const Sizes& sizes) {
  return algorithms::algorithm_of(static_cast<int64_t>(sizes.size()), group.values);
}

// By the names of states.
py::dict piece_of_state_sizes(const engine::GroupOptions& group, const Sizes& sizes, const Sizes& piece,
                              const Layout& layout) {
  py::dict all;
  for (const algorithms::State& state : algorithm_under(group, sizes).states) {
    all[py::str(state.name)] = engine::piece_of_state_sizes(state, sizes, piece, group.values, layout);
  }
  return all;
}

// The sides of the parameter's layout that cut these dimensions.
py::dict sides_of(const engine::GroupOptions& group, const Sizes& sizes, const Sizes& cut, const std::string& name) {
  for (const int64_t dim : cut) engine::check_cut(dim, sizes, group.values, name);
  const engine::Cuts cuts = engine::cuts_of_parameter(static_cast<int64_t>(sizes.size()), group.values);
  py::dict sides;
  const auto add = [&](const char* side, int64_t dim) {
    if (std::find(cut.begin(), cut.end(), dim) != cut.end()) sides[side] = dim;
  };
  add("rows", cuts.rows);
  add("cols", cuts.cols);
  add("batch", cuts.batch);
  return sides;
}

// The dimension of a state of these sizes that is cut where one of its parameter is; None: it is whole there.
py::dict dims_of_state(const engine::GroupOptions& group, const Sizes& sizes, const std::string& name,
                       const Sizes& of_state) {
  const algorithms::Algorithm& algorithm = algorithm_under(group, sizes);
  const algorithms::State& state = algorithm.states[algorithms::index_of(algorithm, std::string_view(name))];
  const engine::Cuts cuts = engine::cuts_of_parameter(static_cast<int64_t>(sizes.size()), group.values);
  const bool is_right =
      state.shape == algorithms::StateShape::factor && engine::is_right(of_state, sizes, group.values);
  const engine::Cuts own = engine::cuts_of_state(state, static_cast<int64_t>(of_state.size()), cuts, is_right);
  py::dict dims;
  const auto add = [&](int64_t from, int64_t to) {
    if (from >= 0) dims[py::int_(from)] = to < 0 ? py::object(py::none()) : py::object(py::int_(to));
  };
  add(cuts.rows, own.rows);
  add(cuts.cols, own.cols);
  add(cuts.batch, own.batch);
  return dims;
}

void bind_group_options(py::module_& m) {
  using engine::GroupOptions;
  const py::call_guard<PythonWords> speaking;
  py::class_<GroupOptions>(m, "GroupOptions")
      .def(py::init(&read_group), py::arg("group"), py::arg("where"), py::arg("whole") = true, speaking)
      .def(
          "matrix_sizes",
          [](const GroupOptions& self, const Sizes& sizes) {
            return engine::matrix_sizes(sizes, engine::form_of(self.values));
          },
          speaking)
      .def(
          "advice_on_stack",
          [](const GroupOptions& self, const Sizes& sizes, const std::string& name) {
            const bool is_open = algorithms::is_none(self.values.at("batch_dims"));
            return is_open ? routing::advice_on_stack(sizes, name) : "";
          },
          speaking)
      .def("piece_of_state_sizes", &piece_of_state_sizes, speaking)
      .def("sides_of", &sides_of, speaking)
      .def("dims_of_state", &dims_of_state, speaking)
      .def(
          "check_factors",
          [](const GroupOptions& self, const Sizes& sizes, const Layout& layout, const std::string& name) {
            engine::check_factors(sizes, self.values, layout, name);
          },
          speaking)
      .def_static(
          "remarks",
          [](const py::dict& before, const py::dict& group, const py::dict& states, const std::string& where) {
            const algorithms::Options now = read_group(group, where, true).values;
            py::list all;
            for (const engine::Remark& remark :
                 engine::remarks_on(options_before(before), now, parameters_with(states, group["params"]), where)) {
              all.append(
                  py::make_tuple(remark.option, kReasons[static_cast<std::size_t>(remark.reason)], remark.sentence));
            }
            return all;
          },
          speaking)
      .def(
          "check_parameter",
          [](const GroupOptions& self, const at::Tensor& param, const std::string& name) {
            engine::check_parameter(param, self.values, name);
          },
          speaking);
}

}  // namespace

void bind_options(py::module_& m) {
  m.def("table", [] {
    const PythonWords words;
    py::list options, all;
    for (const Option& option : algorithms::options()) options.append(described(option));
    for (const algorithms::Algorithm* algorithm : algorithms::all()) all.append(described(*algorithm));
    return py::make_tuple(options, all);
  });
  m.def("algorithm_of",
        [](int64_t dims, const std::string& algorithm, const std::string& scalar_algorithm, int64_t batch_dims) {
          return algorithms::algorithm_of(dims, algorithm, scalar_algorithm, batch_dims).name;
        });
  bind_group_options(m);
}

}  // namespace torchdion::bindings
