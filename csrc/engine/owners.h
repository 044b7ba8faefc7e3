// Which rank does for others what all of them need once: each matrix of a batch has one, in turn.
#pragma once

#include <torchdion/layout.h>

#include <map>

#include "algorithms/algorithm.h"

namespace torchdion::engine {

// Matrices that have owners, by the axis whose ranks they are.
using OwnedMatrices = std::map<const comm::Line*, int64_t>;

// Gives owners to the matrices of a batch; returns how many had been given before, on each axis.
algorithms::Assigned assign_owners(const algorithms::BatchShape& shape, const Layout& layout, OwnedMatrices& owned);

}  // namespace torchdion::engine
