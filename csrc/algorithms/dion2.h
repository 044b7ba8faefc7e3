#pragma once

#include "algorithms/algorithm.h"

namespace torchdion::algorithms {

// Dion2 (arXiv 2512.16928): of each momentum some slices are orthonormalized, those of the largest norms, wherever the
// pieces of matrices lie.
extern const Algorithm kDion2;

}  // namespace torchdion::algorithms
