#include "routing/stages.h"

#include <c10/util/StringUtil.h>

#include <algorithm>

#include "routing/heads.h"
#include "routing/names.h"
#include "words.h"

namespace torchdion::routing {

namespace {

bool is_of_tokens(const Module& module) { return module.layer == Layer::embedding && counts_tokens(module); }

// The module of the first trained parameter for which something holds; nullptr: it holds for none.
const Module* first_owner(const Model& model, const auto& holds) {
  const auto is_found = [&](const Parameter& one) { return one.is_trained && holds(model.modules[one.owner], one); };
  const auto found = std::find_if(model.parameters.begin(), model.parameters.end(), is_found);
  return found == model.parameters.end() ? nullptr : &model.modules[found->owner];
}

// More outputs than inputs, as vocabularies have.
bool is_wide(const Parameter& weight) {
  const int64_t first = weight.sizes.front(), last = weight.sizes.back();
  return weight.is_fan_in_first ? last > first : first > last;
}

bool has_bias(const Model& model, const Module& module) {
  return first_owner(model, [&](const Module& owner, const Parameter& one) {
    return &owner == &module && one.key.find("bias") != std::string::npos;
  });
}

}  // namespace

void warn_of_half_a_tie(const Model& model, const std::unordered_set<int64_t>& heads,
                        std::vector<std::string>& warnings) {
  const Module* head = first_owner(model, [&](const Module& owner, const Parameter& one) {
    return heads.contains(one.id) && is_name_of_head(path_of(owner.name)) && is_wide(one);
  });
  const bool has_embedding = std::any_of(model.modules.begin(), model.modules.end(), is_of_tokens);
  if (head && !has_embedding && !has_bias(model, *head)) {
    warnings.push_back(c10::str(prefix(), shown_name(head->name),
                                " is an output layer in a model without an embedding, as on the last stage of a "
                                "pipeline; ",
                                option_of_heads(),
                                " must name it here and, if the two are tied, the embedding on its stage, so that "
                                "their copies stay equal"));
  }
  const Module* embedding =
      first_owner(model, [](const Module& owner, const Parameter&) { return is_of_tokens(owner); });
  const auto is_place_of_head = [](const std::string& name) { return is_name_of_head(path_of(name)); };
  const bool has_place = std::any_of(model.absent.begin(), model.absent.end(), is_place_of_head);
  if (embedding && heads.empty() && has_place) {
    warnings.push_back(c10::str(prefix(), shown_name(embedding->name),
                                " is an embedding in a model without its output layer, as on the first stage of a "
                                "pipeline; ",
                                option_of_heads(),
                                " must name it if the two are tied, so that their copies stay equal, and be empty "
                                "if not"));
  }
}

}  // namespace torchdion::routing
