// Routes the parameters of a model to groups, as Table 1 of arXiv 2504.05295 does.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "routing/model.h"

namespace torchdion::routing {

// Parameters of one kind and form.
struct Group {
  Kind kind;
  Form form;
  std::vector<std::size_t> parameters;  // of the model
};

struct Routing {
  std::vector<Group> groups;          // in the order of the kinds
  std::vector<std::string> warnings;  // for the caller to give
};

struct Wishes {
  std::optional<std::vector<std::string>> heads = {};  // names of the output layers; none: see head_weights()
  bool is_strict = false;                              // refuse parameters that are guessed or unknown
  std::optional<int64_t> batch_dims = {};  // of parameters of more dimensions, where no layer tells what they are
};

// Every trained parameter once, by the first module that has it; an embedding is one whoever shares it, and tied to a
// head it is the head. Throws c10::ValueError for a head that is none, and for what is refused.
Routing route(Model model, const Wishes& wishes);

}  // namespace torchdion::routing
