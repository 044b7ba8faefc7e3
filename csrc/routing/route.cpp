#include "routing/route.h"

#include <c10/util/StringUtil.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "routing/heads.h"
#include "routing/kinds.h"
#include "routing/layers.h"
#include "routing/stages.h"
#include "routing/unsure.h"
#include "words.h"

namespace torchdion::routing {

namespace {

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
