// Which weights of a model are those of its output layers, and what is said where another stage may share one.
#pragma once

#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "routing/model.h"

namespace torchdion::routing {

// True if a module that is called so, from the top of a model, is an output layer whatever its class.
bool is_name_of_head(const std::vector<std::string>& path);

// The ids of the parameters that output layers' weights are, or are computed from: of the modules of these names, or,
// of none, of those that the rules find. warnings: gets a sentence where they had to choose. Throws c10::ValueError for
// a name of no module with a weight of two or more dimensions.
std::unordered_set<int64_t> head_weights(const Model& model, const std::optional<std::vector<std::string>>& heads,
                                         std::vector<std::string>& warnings);

// Adds one sentence where a model has the head of a language model without an embedding of tokens, or an embedding of
// tokens in which the place of the head is empty. Alone each gets another rule, so that copies part. An encoder has an
// embedding and no place for a head, a head with a bias is tied to nothing: neither is spoken of. heads: the ids of the
// output layers' weights.
void warn_of_half_a_tie(const Model& model, const std::unordered_set<int64_t>& heads,
                        std::vector<std::string>& warnings);

}  // namespace torchdion::routing
