// What each parameter of a plan costs.
#pragma once

#include <vector>

#include "engine/parameter.h"
#include "engine/plan.h"

namespace torchdion::engine {

// What one parameter costs this rank in a step.
struct ParameterCost {
  std::size_t group, parameter;
  Layout layout;  // by whose axes the cost is
  bool decoupled;
  algorithms::Cost cost;
  int64_t state_bytes;
};

// Of all parameters in their order; costs of batches are the sums of those of their matrices.
std::vector<ParameterCost> costs_of(const Plan& plan, const Groups& groups);

// Of groups.given(), with what they send to owners and from them.
std::vector<ParameterCost> costs_of(const SharedGroups& groups);

// The same of parameters on the Meta device, with the states that they would start with. Each group has the parameters
// of one algorithm, which its options name.
std::vector<ParameterCost> costs_of(std::vector<ParameterGroup> groups);

}  // namespace torchdion::engine
