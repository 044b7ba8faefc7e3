// What the options of a group must be together.
#pragma once

#include <string>
#include <vector>

#include "engine/groups.h"

namespace torchdion::engine {

// Of the options that the group has. Throws c10::ValueError; `where` says whose they are: " (parameter group 2)".
void check_combinations(const algorithms::Options& group, const std::string& where);

// Of all groups: options of the optimizer are alike. Throws c10::ValueError that names the first group that differs;
// whose: " of the state dict", say.
void check_alike(const std::vector<const algorithms::Options*>& groups, const std::string& whose = "");

}  // namespace torchdion::engine
