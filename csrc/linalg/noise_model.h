// How noise adds up, and how much of it orthogonalization leaves: alike on every device.
#pragma once

#include <cmath>

#include "linalg/host_device.h"

namespace torchdion::linalg {

// A column whose noise is longer, relative to it, is given this: it has no signal.
inline constexpr double kLargestNoise = 1024;

// Noise::mean with what so many steps have left in the momentum.
TORCHDION_HOST_DEVICE double mean_after(double mean, double momentum, double steps) {
  return sqrt(mean * mean + momentum * momentum * steps);
}

// The rest of noise of length 1 after orthogonalization.
template <class T>
struct NoiseLeft {
  T mean;     // its root mean square
  T longest;  // it is longer in one case of a thousand
};

// Noise points anywhere among `rows` dimensions, and orthogonalization against `live` columns takes as many of them.
// The length of f independent normal errors has the root mean square √f and is seldom more than √f + 2.
// unit: 1 / sqrt(rows).
template <class T>
TORCHDION_HOST_DEVICE NoiseLeft<T> noise_left(T rows, T unit, T live) {
  const T mean = sqrt(rows > live ? rows - live : T(0)) * unit;
  return {mean, mean + 2 * unit};
}

}  // namespace torchdion::linalg
