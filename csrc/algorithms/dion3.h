#pragma once

#include "algorithms/algorithm.h"

namespace torchdion::algorithms {

// Dion3: Dion2 of rows alone, with NorMuon's normalization of those that are chosen.
extern const Algorithm kDion3;

}  // namespace torchdion::algorithms
