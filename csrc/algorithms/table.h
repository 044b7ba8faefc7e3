// The algorithms, in the order in which a step updates their parameters. Each is declared in a file of its own name.
#pragma once

#include "algorithms/algorithm.h"

#define TORCHDION_ALGORITHMS(row) \
  row(kDion) row(kMuon) row(kNorMuon) row(kDion2) row(kDion3) row(kDoubleDion) row(kDemo) row(kLion) row(kAdamW)

namespace torchdion::algorithms {

#define TORCHDION_DECLARE(name) extern const Algorithm name;
TORCHDION_ALGORITHMS(TORCHDION_DECLARE)
#undef TORCHDION_DECLARE

}  // namespace torchdion::algorithms
