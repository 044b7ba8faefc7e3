// Momenta without gradients end. Near the least number of a type 0.95 m rounds to m, and a scale-free rule would move
// weights by such a momentum at its full rate for ever. So where a momentum is accumulated, what is shorter than the
// normal numbers of its type is zero. FP16, in whose denormals gradients lie, keeps all but those of five bits: 0.98 m,
// of Lion, rounds to m up to 25 units.
#pragma once

#include <type_traits>

#include "linalg/host_device.h"

namespace torchdion::linalg {

inline constexpr double kLeastMomentumFP64 = 0x1p-1022, kLeastMomentumFP32 = 0x1p-126, kLeastMomentumFP16 = 0x1p-19;

// NaN stays NaN.
template <class T>
TORCHDION_HOST_DEVICE T zero_below(T least, T value) {
  return value < least && -value < least ? T(0) : value;
}

// keep m + gradient as it is stored. Never in one rounding (of the host CMakeLists.txt sees to that): whichever kernel
// accumulates a momentum, copies of it on other ranks have the same bits.
template <class T>
TORCHDION_HOST_DEVICE T accumulated(T least, T keep, T m, T gradient) {
#ifdef __CUDA_ARCH__
  if constexpr (std::is_same_v<T, double>) {
    return zero_below(least, __dadd_rn(keep * m, gradient));
  } else {
    return zero_below(least, __fadd_rn(keep * m, gradient));
  }
#else
  return zero_below(least, keep * m + gradient);
#endif
}

}  // namespace torchdion::linalg
