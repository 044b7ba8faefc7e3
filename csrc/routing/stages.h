// The warning about one stage of a pipeline whose embedding may be tied to the head of another stage.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_set>
#include <vector>

#include "routing/model.h"

namespace torchdion::routing {

// Adds one sentence where a model has the head of a language model without an embedding of tokens, or an embedding of
// tokens in which the place of the head is empty. Alone each gets another rule, so that copies part. An encoder has an
// embedding and no place for a head, a head with a bias is tied to nothing: neither is spoken of. heads: the ids of the
// output layers' weights.
void warn_of_half_a_tie(const Model& model, const std::unordered_set<int64_t>& heads,
                        std::vector<std::string>& warnings);

}  // namespace torchdion::routing
