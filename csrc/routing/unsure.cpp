#include "routing/unsure.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <map>
#include <regex>

#include "algorithms/all.h"
#include "words.h"

namespace torchdion::routing {

namespace {

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

}  // namespace

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

}  // namespace torchdion::routing
