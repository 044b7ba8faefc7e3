#pragma once

#include "algorithms/algorithm.h"

namespace torchdion::algorithms {

// DeMo (arXiv 2411.19870): replicas exchange the largest coefficients of the chunked cosine transforms of momenta that
// are each one's own, and step by signs.
extern const Algorithm kDemo;

}  // namespace torchdion::algorithms
