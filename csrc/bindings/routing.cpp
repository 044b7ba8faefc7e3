// The groups of a model's parameters, as the rules of routing make them of what Python says of it.
#include <map>

#include "bindings/bindings.h"
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

Layer layer_of(const std::string& name) {
  static const std::map<std::string, Layer> layers{{"other", Layer::other},
                                                   {"linear", Layer::linear},
                                                   {"embedding", Layer::embedding},
                                                   {"embedding_bag", Layer::embedding_bag},
                                                   {"convolution", Layer::convolution},
                                                   {"transposed_convolution", Layer::transposed_convolution},
                                                   {"attention", Layer::attention}};
  return layers.at(name);
}

// The entry of a dict; what it is where there is none stays.
template <class T>
void read(const py::dict& described, const char* name, T& value) {
  if (described.contains(name)) value = described[name].cast<T>();
}

routing::Module module_of(const py::dict& described) {
  routing::Module module;
  read(described, "name", module.name);
  read(described, "class_name", module.class_name);
  module.layer = layer_of(described["layer"].cast<std::string>());
  read(described, "width", module.width);
  read(described, "shown_weight", module.shown_weight);
  read(described, "experts", module.experts);
  read(described, "gate_up_proj", module.gate_up_proj);
  read(described, "down_proj", module.down_proj);
  read(described, "is_transposed", module.is_transposed);
  read(described, "is_concatenated", module.is_concatenated);
  return module;
}

routing::Parameter parameter_of(const py::dict& described) {
  routing::Parameter parameter;
  read(described, "owner", parameter.owner);
  read(described, "key", parameter.key);
  read(described, "name", parameter.name);
  read(described, "id", parameter.id);
  read(described, "sizes", parameter.sizes);
  read(described, "is_trained", parameter.is_trained);
  read(described, "cut_dims", parameter.cut_dims);
  return parameter;
}

}  // namespace

void bind_routing(py::module_& m) {
  m.def(
      "route",
      [](const std::vector<py::dict>& modules, const std::vector<py::dict>& parameters,
         std::vector<std::size_t> declared, std::vector<std::string> absent,
         const std::optional<std::vector<std::string>>& heads, bool strict) {
        routing::Model model{{}, {}, std::move(declared), std::move(absent)};
        for (const py::dict& described : modules) model.modules.push_back(module_of(described));
        for (const py::dict& described : parameters) model.parameters.push_back(parameter_of(described));
        const routing::Routing found = routing::route(std::move(model), {.heads = heads, .is_strict = strict});
        py::list groups;
        for (const routing::Group& group : found.groups) {
          groups.append(py::make_tuple(title_of(group.kind), options_of(group.form), group.parameters));
        }
        return py::make_tuple(groups, found.warnings);
      },
      py::call_guard<PythonWords>());
}

}  // namespace torchdion::bindings
