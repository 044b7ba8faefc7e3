#pragma once

#include "algorithms/algorithm.h"

namespace torchdion::algorithms {

// Lion (arXiv 2302.06675): X ← (1 − η λ) X − η sign(β₁ M + (1 − β₁) G);  M ← β₂ M + (1 − β₂) G.
extern const Algorithm kLion;

}  // namespace torchdion::algorithms
