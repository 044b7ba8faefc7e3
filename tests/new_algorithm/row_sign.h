#pragma once

#include "algorithms/algorithm.h"

namespace torchdion::algorithms {

// Sign descent by rows: M ← μ M + G;  s_i ← μ s_i + (1 − μ) mean_j |G_ij|;  X_ij ← (1 − η λ) X_ij − η s_i sign(M_ij).
extern const Algorithm kRowSign;

}  // namespace torchdion::algorithms
