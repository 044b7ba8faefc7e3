// Sorts the parameters of a group that are no matrices into batches that one task updates together.
#pragma once

#include <functional>
#include <vector>

#include "algorithms/elementwise.h"
#include "engine/batches.h"
#include "engine/groups.h"

namespace torchdion::engine {

// How the gradients on a device count.
using RuleOn = std::function<linalg::GradientRule(c10::Device)>;

// One for each device, with the same replicas to average with and, where there are any, the same computing dtype.
// Throws c10::Error where a state does not fit its parameter.
std::vector<algorithms::ElementwiseBatch> lion_batches(const LionGroup& group, const RuleOn& rule_on, Copies& copies);
std::vector<algorithms::ElementwiseBatch> adamw_batches(const AdamWGroup& group, bool capturable, const RuleOn& rule_on,
                                                        Copies& copies);

}  // namespace torchdion::engine
