// What ranks take parameters, groups and the optimizer for, which they compare before they communicate.
#pragma once

#include <torchdion/layout.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/agreement.h"
#include "engine/groups.h"

namespace torchdion::engine {

// A tensor of a parameter's state, by its name and its sizes over all ranks.
struct HeldState {
  std::string name;
  at::ScalarType dtype;
  std::vector<int64_t> sizes;
};

// What this rank has of a parameter that other ranks have too, or other pieces of it.
struct Held {
  std::string name;
  std::size_t group;
  std::vector<int64_t> sizes;  // over all ranks
  at::ScalarType dtype;
  std::string device;  // its kind
  std::string layout;  // where the pieces lie
  bool requires_grad;
  std::optional<double> steps;    // none: there is no state
  std::vector<HeldState> states;  // that there are
  std::vector<Axis> axes;         // of the ranks that have it too
  std::optional<at::ScalarType> gradient = {};
  std::vector<Axis> shared = {};  // see Claim
};

// Of the optimizer, whose properties are given, of the groups of these parameters, then of each parameter. A step makes
// what is not there; what else ranks do, they do with what is.
std::vector<Claim> claims_of(const std::vector<Held>& parameters, const std::vector<const GroupOptions*>& groups,
                             std::vector<std::pair<std::string, std::string>> optimizer, Operation operation);

}  // namespace torchdion::engine
