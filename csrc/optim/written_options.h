// A look at the options of groups that a program has written into since the last step: obeyed, or warned of once.
#pragma once

#include <torchdion/optimizer.h>

#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/groups.h"
#include "optim/layouts.h"

namespace torchdion::optim {

// Why a written option does not do, or not do alone, what its name says.
enum class Reason { ignored, other_algorithm, side, start, dtype, rank };

// The options of a group as the last step found them.
struct SaidOptions {
  algorithms::Options values;
  std::vector<const void*> params;                     // of the group: programs remove, insert and exchange groups
  std::set<std::pair<std::string, Reason>> told = {};  // the warnings that were given
};

SaidOptions said_by(const torch::optim::OptimizerParamGroup& group, const engine::GroupOptions& options);

// Warns of options that were written since: that no algorithm of the group has, that are those of states that are
// still to be made, or that let an algorithm go on with the states of another. Options that choose the side of a matrix
// to which existing states belong stay what they were.
// options: of the groups, as checked; gets what holds. said: at the last step; gets that of these groups. resizes:
// states get the ranks that were written.
void look_at(Optimizer& optimizer, const Layouts& layouts, std::vector<engine::GroupOptions>& options,
             std::vector<SaidOptions>& said, bool resizes);

}  // namespace torchdion::optim
