#include "routing/route.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <regex>

#include "algorithms/all.h"
#include "routing/heads.h"
#include "routing/kinds.h"
#include "routing/layers.h"
#include "words.h"

namespace torchdion::routing {

namespace {

// The kind and the form of one parameter; where modules share it, of the first of them.
struct Route {
  std::size_t parameter;  // of the model
  Kind kind;
  Form form;
};

// A head's rate follows its inputs.
double rate_of_head(const Form& form, at::IntArrayRef sizes) {
  const at::IntArrayRef matrix = sizes.slice(form.batch_dims.value_or(0));
  const int64_t inputs = form.fan_in_first.value_or(false) ? matrix[0] : c10::multiply_integers(matrix.slice(1));
  return 1 / std::sqrt(static_cast<double>(inputs));
}

std::vector<Route> routes_of(const Model& model, const std::unordered_set<int64_t>& heads) {
  std::vector<Route> routes;
  std::map<int64_t, std::size_t> known;  // routes by ids
  for (std::size_t i = 0; i < model.parameters.size(); ++i) {
    const Parameter& parameter = model.parameters[i];
    const Module& owner = model.modules[parameter.owner];
    const auto found = known.find(parameter.id);
    if (!parameter.is_trained || (found != known.end() && !is_embedding(owner, parameter))) continue;
    Kind kind = kind_of(owner, parameter);
    Form form = form_of(kind, owner, parameter);
    if (heads.contains(parameter.id)) {
      kind = Kind::head;
      form = {.lr_multiplier = rate_of_head(form, parameter.sizes)};
    }
    if (found != known.end()) {
      routes[found->second] = {routes[found->second].parameter, kind, form};
    } else {
      known.emplace(parameter.id, routes.size());
      routes.push_back({i, kind, form});
    }
  }
  return routes;
}

// Fused matrices that are cut along their rows become one, for the engine follows no such cut.
void fuse_what_is_cut(const Model& model, std::vector<Route>& routes, std::vector<std::string>& warnings) {
  std::vector<std::string> names;
  for (Route& route : routes) {
    const Parameter& parameter = model.parameters[route.parameter];
    const std::vector<int64_t>& dims = parameter.cut_dims;
    const bool is_cut = std::find(dims.begin(), dims.end(), route.form.batch_dims.value_or(0)) != dims.end();
    if (route.form.blocks.value_or(1) == 1 || !is_cut) continue;
    route.form.blocks = 1;
    names.push_back(parameter.name);
  }
  if (names.empty()) return;
  warnings.push_back(c10::str(prefix(), shown_name(names.front()), " (", names.size(),
                              " in all) holds fused matrices and is cut along them, so that they are updated as one "
                              "matrix, unlike on one process; a cut of its columns leaves them apart"));
}

using Names = std::vector<std::string>;

// Names of parameters with a star for the number of a layer, each once.
void add_name(const Model& model, const Route& route, Names& names) {
  static const std::regex number("(^|\\.)\\d+(?=\\.)");
  std::string name = shown_name(std::regex_replace(model.parameters[route.parameter].name, number, "$1*"));
  if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(std::move(name));
}

std::string taken_for(int64_t batch_dims) {
  return c10::str(", taken by shape for ", batch_dims == 0 ? "one matrix each (" : "stacks of matrices (",
                  algorithms::assigned(*algorithms::option("batch_dims"), batch_dims), ")");
}

// Adds one sentence of all that are guessed or unknown, in which layers that are alike have one name.
void warn_of_what_is_unsure(const Model& model, const std::vector<Route>& routes, Names& warnings) {
  std::map<int64_t, Names> guessed;  // by batch_dims
  Names unknown;
  for (const Route& route : routes) {
    if (route.kind == Kind::guessed) add_name(model, route, guessed[*route.form.batch_dims]);
    if (route.kind == Kind::unknown) add_name(model, route, unknown);
  }
  if (guessed.empty() && unknown.empty()) return;
  Names clauses;
  for (const auto& [batch_dims, names] : guessed) clauses.push_back(c10::Join(", ", names) + taken_for(batch_dims));
  if (!unknown.empty()) clauses.push_back(c10::Join(", ", unknown) + ", updated as vectors");
  const char* remedy = "where this is wrong, set batch_dims in the group";
  if (guessed.empty()) {
    remedy = "leave algorithm out of the group of a matrix, and set batch_dims in that of a stack";
  } else if (!unknown.empty()) {
    remedy = "where this is wrong, set batch_dims in the group, and leave algorithm out of that of a matrix";
  }
  warnings.push_back(c10::str(
      prefix(), "no layer and no name says what these parameters are: ", c10::Join("; ", clauses), "; ", remedy));
}

// Throws c10::ValueError with their names, if there are any.
void refuse_what_is_unsure(const Model& model, const std::vector<Route>& routes) {
  Names names;
  for (const Route& route : routes) {
    if (route.kind == Kind::guessed || route.kind == Kind::unknown) add_name(model, route, names);
  }
  TORCH_CHECK_VALUE(names.empty(), prefix(), "strict must be ", shown(false),
                    " where no layer and no name says what a parameter is, got ", shown(true), " with ",
                    c10::Join(", ", names),
                    "; freeze them for this call and give them a group of their own, with batch_dims for a stack");
}

}  // namespace

Routing route(Model model, const Wishes& wishes) {
  recognize_layers(model);
  Routing routing;
  const std::unordered_set<int64_t> heads = head_weights(model, wishes.heads, routing.warnings);
  std::vector<Route> routes = routes_of(model, heads);
  for (Route& route : routes) {
    const bool is_unsure = route.kind == Kind::guessed || route.kind == Kind::unknown;
    const auto dims = static_cast<int64_t>(model.parameters[route.parameter].sizes.size());
    const bool is_said = wishes.batch_dims && dims > 2 && dims - *wishes.batch_dims >= 2;
    if (is_unsure && is_said) route = {route.parameter, Kind::matrix, {.batch_dims = *wishes.batch_dims}};
  }
  fuse_what_is_cut(model, routes, routing.warnings);
  if (wishes.is_strict) refuse_what_is_unsure(model, routes);
  warn_of_what_is_unsure(model, routes, routing.warnings);
  if (!wishes.heads) warn_of_half_a_tie(model, heads, routing.warnings);
  std::stable_sort(routes.begin(), routes.end(), [](const Route& a, const Route& b) { return a.kind < b.kind; });
  for (const Route& route : routes) {
    const auto is_alike = [&](const Group& group) { return group.kind == route.kind && group.form == route.form; };
    auto group = std::find_if(routing.groups.begin(), routing.groups.end(), is_alike);
    if (group == routing.groups.end()) {
      group = routing.groups.insert(group, {route.kind, route.form, {}});
    }
    group->parameters.push_back(route.parameter);
  }
  return routing;
}

}  // namespace torchdion::routing
