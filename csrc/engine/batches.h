// The tensors of a plan's batches.
#pragma once

#include <vector>

#include "algorithms/batch.h"
#include "engine/copies.h"
#include "engine/groups.h"
#include "engine/plan.h"

namespace torchdion::engine {

// One for each batch of the plan, in its order, complete but for what is the device's: counts, the rule for gradients
// and the workspace. All tensors have been checked.
std::vector<algorithms::Batch> batches_of(const Plan& plan, const Groups& groups, Copies& copies);

}  // namespace torchdion::engine
