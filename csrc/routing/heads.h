// Which weights of a model are those of its output layers.
#pragma once

#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "routing/model.h"

namespace torchdion::routing {

// The ids of the parameters that output layers' weights are, or are computed from: of the modules of these names, or,
// of none, of those that the rules find. warnings: gets a sentence where they had to choose. Throws c10::ValueError for
// a name of no module with a weight of two or more dimensions.
std::unordered_set<int64_t> head_weights(const Model& model, const std::optional<std::vector<std::string>>& heads,
                                         std::vector<std::string>& warnings);

}  // namespace torchdion::routing
