// Which weights of a model are those of its output layers.
#pragma once

#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "routing/model.h"

namespace torchdion::routing {

// The name, in the caller's language, of the option that names the output layers.
const char* option_of_heads();

// True if a module that is called so, from the top of a model, is an output layer whatever its class.
bool is_name_of_head(const std::vector<std::string>& path);

// True if an embedding may have an entry for each token, by its name and class: others are of positions, types, ...
bool counts_tokens(const Module& embedding);

// The ids of the parameters that output layers' weights are, or are computed from: of the modules of these names, or,
// of none, of those that the rules find. warnings: gets a sentence where they had to choose. Throws c10::ValueError for
// a name of no module with a weight of two or more dimensions.
std::unordered_set<int64_t> head_weights(const Model& model, const std::optional<std::vector<std::string>>& heads,
                                         std::vector<std::string>& warnings);

}  // namespace torchdion::routing
