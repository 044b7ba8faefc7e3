// A look at the options of groups that a program has written into since the last step: obeyed, or warned of once.
#pragma once

#include <torchdion/optimizer.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/written_options.h"
#include "optim/groups.h"

namespace torchdion::optim {

// The options of a group as the last look found them.
struct SaidOptions {
  algorithms::Options values;
  std::vector<const void*> params;  // of the group: programs remove, insert and exchange groups
  std::set<std::pair<std::string_view, engine::Reason>> told = {};  // the warnings that were given
};

SaidOptions said_by(const torch::optim::OptimizerParamGroup& group, const engine::GroupOptions& options);

// The same of a group that is added, with a warning of each option that no algorithm of it has.
SaidOptions look_at_added(const torch::optim::OptimizerParamGroup& group, const Options& defaults, std::size_t index);

// Warns of options that were written since, see engine::remarks_on(). Those that are kept become what they were.
// shown: the parameters of the groups, with their states. options: of the groups, as checked; gets what holds. said: at
// the last look; gets that of these groups. resizes: states get the ranks that were written.
void look_at(ParamGroups& groups, const std::vector<engine::ParameterGroup>& shown,
             std::vector<engine::GroupOptions>& options, std::vector<SaidOptions>& said, bool resizes);

}  // namespace torchdion::optim
