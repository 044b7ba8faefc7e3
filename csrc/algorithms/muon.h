#pragma once

#include "algorithms/algorithm.h"

namespace torchdion::algorithms {

// Muon (https://kellerjordan.github.io/posts/muon, 2024): the momentum, orthonormalized by Newton–Schulz iterations, of
// whole matrices wherever their pieces lie.
extern const Algorithm kMuon;

}  // namespace torchdion::algorithms
