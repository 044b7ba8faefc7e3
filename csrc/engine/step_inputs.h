// The inputs of a step: an optimizer's parameters, gradients and states in lists, by group and algorithm.
#pragma once

#include <utility>
#include <vector>

#include "engine/core.h"

namespace torchdion::engine {

struct StepInputs {
  Groups groups;
  std::vector<const ParameterView*> updated;
  std::vector<std::pair<ParameterView*, ParameterState>> made;  // states that were missing

  // Whether matrices are averaged over replicas.
  bool averages() const;
};

// missing: the parameters whose gradient, which only other ranks have, is zero here. Throws c10::Error for a state that
// no step takes.
StepInputs inputs_of(Core& core, Front& front, const Missing& missing);

}  // namespace torchdion::engine
