#pragma once

#include "algorithms/algorithm.h"

namespace torchdion::algorithms {

// Double Dion: Algorithm 6 of arXiv 2504.05295. What replicas exchange has a small rank of its own.
extern const Algorithm kDoubleDion;

}  // namespace torchdion::algorithms
