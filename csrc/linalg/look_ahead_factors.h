#pragma once

namespace torchdion::linalg {

// Of L = gradient · G + momentum · M.
struct LookAheadFactors {
  double gradient = 0, momentum = 1;
};

}  // namespace torchdion::linalg
