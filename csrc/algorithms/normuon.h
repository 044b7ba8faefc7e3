#pragma once

#include "algorithms/algorithm.h"

namespace torchdion::algorithms {

// NorMuon (arXiv 2510.05491): Muon's update with rows normalized by running means of their squares, of whole matrices
// wherever their pieces lie.
extern const Algorithm kNorMuon;

}  // namespace torchdion::algorithms
