#pragma once

#include "algorithms/algorithm.h"

namespace torchdion::algorithms {

// Dion: Algorithm 1 of arXiv 2504.05295 on whole matrices, Algorithms 3 and 4 on cut ones.
extern const Algorithm kDion;

}  // namespace torchdion::algorithms
