// The scale of a residual, for all devices.
#pragma once

#include <cstdint>
#include <limits>

#include "linalg/host_device.h"

namespace torchdion::linalg {

// How many lengths make the shortest quarter of so many.
TORCHDION_HOST_DEVICE int64_t quarter_of(int64_t count) { return (count + 3) / 4; }

// 1 / σ, at most the largest number of the type. σ is the mean of the shortest quarter, but no less than `least` of the
// longest length.
template <class T>
TORCHDION_HOST_DEVICE T inverse_sigma(double mean, double longest, double least) {
  constexpr double kLargest = static_cast<double>(std::numeric_limits<T>::max());
  const double sigma = mean > least * longest ? mean : least * longest, inverse = 1 / sigma;
  return static_cast<T>(inverse > kLargest ? kLargest : inverse);
}

}  // namespace torchdion::linalg
