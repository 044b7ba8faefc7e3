// Momenta without gradients end. Near the least number of a type 0.95 m rounds to m, and a scale-free rule would move
// weights by such a momentum at its full rate for ever. So where a momentum is accumulated, what is shorter than the
// normal numbers of its type is zero. FP16, in whose denormals gradients lie, keeps all but those of five bits: 0.98 m,
// of Lion, rounds to m up to 25 units.
#pragma once

#include "linalg/host_device.h"

namespace torchdion::linalg {

inline constexpr double kLeastMomentumFP64 = 0x1p-1022, kLeastMomentumFP32 = 0x1p-126, kLeastMomentumFP16 = 0x1p-19;

// NaN stays NaN.
template <class T>
TORCHDION_HOST_DEVICE T zero_below(T least, T value) {
  return value < least && -value < least ? T(0) : value;
}

}  // namespace torchdion::linalg
