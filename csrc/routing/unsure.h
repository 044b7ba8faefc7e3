// The warning about parameters whose kind no layer and no name tells.
#pragma once

#include <string>
#include <vector>

#include "routing/model.h"

namespace torchdion::routing {

// Adds one sentence of all that are guessed or unknown, in which layers that are alike have one name.
void warn_of_what_is_unsure(const Model& model, const std::vector<Route>& routes, std::vector<std::string>& warnings);

// Throws c10::ValueError with their names, if there are any.
void refuse_what_is_unsure(const Model& model, const std::vector<Route>& routes);

}  // namespace torchdion::routing
