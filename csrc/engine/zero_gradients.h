// The matrices that a group with skip_zero_gradients leaves as they are: decided on the devices, for no host to wait.
#pragma once

#include <vector>

#include "engine/groups.h"

namespace torchdion::engine {

// Makes room for what find_unchanged() finds, before batches are made of the group.
void allocate_unchanged(Group& group);

// unchanged[i] ← not 0 for the matrices of parameter i whose gradient is zero on all ranks that have a piece or a copy.
// Entries that are not finite are zero where they count as such. One message along each of the axes that any of the
// groups communicates over, which are given in an order that all ranks share.
void find_unchanged(const std::vector<Group>& groups, const std::vector<Axis>& axes, bool nonfinite_are_zero);

// No matrix of the parameters on this device changes where the step is left out: one number there, not 0.
void leave_unchanged(const std::vector<Group>& groups, const at::Tensor& left_out);

}  // namespace torchdion::engine
