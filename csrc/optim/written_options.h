// A look at the options of groups that a program has written into since the last step: obeyed, or warned of once.
#pragma once

#include <torchdion/optimizer.h>

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/groups.h"
#include "optim/layouts.h"

namespace torchdion::optim {

// The options of a group as the last step found them.
struct SaidOptions {
  std::optional<algorithms::Options> values = {};  // none: there was no such group
  const void* first = nullptr;                     // the group's first parameter: programs may remove and insert groups
  std::set<std::string, std::less<>> told = {};    // those that a warning was given for
};

SaidOptions said_by(const torch::optim::OptimizerParamGroup& group, const engine::GroupOptions& options);

// Warns of options that were written since, and that no algorithm of the group has or that are only those of states
// that are still to be made. Options that choose the side of a matrix to which
// existing states belong stay what they were.
// options: of the groups, as checked; gets what holds. said: of the same groups.
void look_at(Optimizer& optimizer, const Layouts& layouts, std::vector<engine::GroupOptions>& options,
             std::vector<SaidOptions>& said);

}  // namespace torchdion::optim
