// Which rank does for others what all of them need once: each matrix has one owner.
#pragma once

#include <torchdion/layout.h>

#include <vector>

#include "engine/plan.h"

namespace torchdion::engine {

// Gives every matrix whose work can be shared an owner: the costliest first, each to the rank that has least to do
// yet among those which share it. Ranks that share matrices decide alike, because they look at nothing but shapes
// and the axes on which there are any: all must have matrices on the same ones, as the ranks of one model do.
void assign_owners(std::vector<Alike>& alike);

int64_t ranks_of(const std::vector<Axis>& axes);

// BatchShape::owners of as many matrices as these axes have ranks, of which each owns one.
std::vector<std::vector<int64_t>> one_for_each(const std::vector<Axis>& axes);

// BatchShape::owners of the matrices [begin, end) of alike ones.
std::vector<std::vector<int64_t>> owners_of(const Alike& alike, int64_t begin, int64_t end);

}  // namespace torchdion::engine
