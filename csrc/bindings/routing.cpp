// The groups of a model's parameters, as the rules of routing make them of what Python says of it.
#include "bindings/bindings.h"
#include "routing/guesses.h"
#include "routing/route.h"

namespace torchdion::bindings {

namespace {

using routing::Kind;
using routing::Layer;

// The kind as a group names it: all matrices but transposed ones are "matrix".
const char* title_of(Kind kind) {
  switch (kind) {
    case Kind::transposed:
      return "transposed";
    case Kind::embedding:
      return "embedding";
    case Kind::vector:
      return "vector";
    case Kind::unknown:
      return "unknown";
    case Kind::head:
      return "head";
    default:
      return "matrix";
  }
}

py::dict options_of(const routing::Form& form) {
  py::dict options(py::arg("lr_multiplier") = form.lr_multiplier);
  if (form.batch_dims) options["batch_dims"] = *form.batch_dims;
  if (form.blocks) options["blocks"] = *form.blocks;
  if (form.fan_in_first) options["fan_in_first"] = *form.fan_in_first;
  if (form.skip_zero_gradients) options["skip_zero_gradients"] = *form.skip_zero_gradients;
  return options;
}

}  // namespace

void bind_routing(py::module_& m) {
  py::enum_<Layer>(m, "Layer")
      .value("other", Layer::other)
      .value("linear", Layer::linear)
      .value("embedding", Layer::embedding)
      .value("embedding_bag", Layer::embedding_bag)
      .value("convolution", Layer::convolution)
      .value("transposed_convolution", Layer::transposed_convolution)
      .value("attention", Layer::attention)
      .value("normalization", Layer::normalization);
  py::class_<routing::Module>(m, "ModelModule")
      .def(py::init([](std::string name, std::string class_name, Layer layer, int64_t width) {
             return routing::Module{
                 .name = std::move(name), .class_name = std::move(class_name), .layer = layer, .width = width};
           }),
           py::kw_only(), py::arg("name"), py::arg("class_name"), py::arg("layer"), py::arg("width") = 0)
      .def_readwrite("shown_weight", &routing::Module::shown_weight)
      .def_readwrite("experts", &routing::Module::experts)
      .def_readwrite("gate_up_proj", &routing::Module::gate_up_proj)
      .def_readwrite("down_proj", &routing::Module::down_proj)
      .def_readwrite("is_transposed", &routing::Module::is_transposed)
      .def_readwrite("is_concatenated", &routing::Module::is_concatenated);
  py::class_<routing::Parameter>(m, "ModelParameter")
      .def(py::init([](std::size_t owner, std::string key, std::string name, int64_t id, std::vector<int64_t> sizes,
                       bool is_trained, std::vector<int64_t> cut_dims) {
             return routing::Parameter{owner,      std::move(key),     std::move(name), id, std::move(sizes),
                                       is_trained, std::move(cut_dims)};
           }),
           py::kw_only(), py::arg("owner"), py::arg("key"), py::arg("name"), py::arg("id"), py::arg("sizes"),
           py::arg("is_trained"), py::arg("cut_dims") = std::vector<int64_t>());
  m.def("is_doubtful_kernel", routing::is_doubtful_kernel);
  m.def(
      "route",
      [](std::vector<routing::Module> modules, std::vector<routing::Parameter> parameters,
         std::vector<std::size_t> declared, std::vector<std::string> absent,
         const std::optional<std::vector<std::string>>& heads, bool strict) {
        const routing::Routing found =
            routing::route({std::move(modules), std::move(parameters), std::move(declared), std::move(absent)},
                           {.heads = heads, .is_strict = strict});
        py::list groups;
        for (const routing::Group& group : found.groups) {
          groups.append(py::make_tuple(title_of(group.kind), options_of(group.form), group.parameters));
        }
        return py::make_tuple(groups, found.warnings);
      },
      py::arg("modules"), py::arg("parameters"), py::arg("declared"), py::arg("absent"), py::arg("heads"),
      py::arg("strict"), py::call_guard<PythonWords>());
}

}  // namespace torchdion::bindings
