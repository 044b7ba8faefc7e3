#include "routing/route.h"

#include <c10/util/StringUtil.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <regex>

#include "algorithms/all.h"
#include "routing/heads.h"
#include "routing/kinds.h"
#include "words.h"

namespace torchdion::routing {

namespace {

struct Route {
  std::size_t parameter;  // the first of those that share it
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

// One sentence of all forms that are guessed by shapes, in which layers that are alike have one name.
void warn_of_guesses(const Model& model, const std::vector<Route>& routes, std::vector<std::string>& warnings) {
  static const std::regex number("(^|\\.)\\d+(?=\\.)");
  std::array<std::vector<std::string>, 2> names;  // by batch_dims
  for (const Route& route : routes) {
    if (route.kind != Kind::guessed) continue;
    std::vector<std::string>& alike = names[*route.form.batch_dims];
    std::string name = shown_name(std::regex_replace(model.parameters[route.parameter].name, number, "$1*"));
    if (std::find(alike.begin(), alike.end(), name) == alike.end()) alike.push_back(std::move(name));
  }
  std::vector<std::string> taken;
  for (const int64_t batch_dims : {0, 1}) {
    if (names[batch_dims].empty()) continue;
    taken.push_back(c10::str(c10::Join(", ", names[batch_dims]),
                             batch_dims == 0 ? " for one matrix each (" : " for stacks of matrices (",
                             algorithms::assigned(*algorithms::option("batch_dims"), batch_dims), ")"));
  }
  if (taken.empty()) return;
  warnings.push_back(c10::str(prefix(), "by their shapes takes ", c10::Join(" and ", taken),
                              "; set batch_dims in the group of what is something else"));
}

}  // namespace

Routing route(const Model& model, const std::optional<std::vector<std::string>>& heads, bool knows_stacks) {
  Routing routing;
  std::vector<Route> routes = routes_of(model, head_weights(model, heads, routing.warnings));
  for (Route& route : routes) {
    if (route.kind == Kind::guessed && knows_stacks) route = {route.parameter, Kind::matrix, {}};
  }
  fuse_what_is_cut(model, routes, routing.warnings);
  warn_of_guesses(model, routes, routing.warnings);
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
