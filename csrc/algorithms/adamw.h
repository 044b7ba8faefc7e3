#pragma once

#include "algorithms/algorithm.h"

namespace torchdion::algorithms {

// AdamW (arXiv 1711.05101) with bias correction, as torch.optim.AdamW computes it.
extern const Algorithm kAdamW;

}  // namespace torchdion::algorithms
