// How noise adds up, and how much of it orthogonalization leaves: alike on every device.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "linalg/host_device.h"

namespace torchdion::linalg {

// A column whose noise is longer, relative to it, is given this: it has no signal.
inline constexpr double kLargestNoise = 1024;

// The number of steps, rounded up to a power of two: matrices whose numbers are near each other share a batch.
TORCHDION_HOST_DEVICE double counted_steps(double steps) {
  int exponent = 0;
  return steps > 1 && frexp(steps, &exponent) != 0.5 ? ldexp(1.0, exponent) : steps;
}

// Noise::mean after so many steps, of which the momentum remembers `most`.
TORCHDION_HOST_DEVICE double mean_after(double mean, double momentum, double steps, double most) {
  const double counted = counted_steps(steps);
  return sqrt(mean * mean + momentum * momentum * (counted < most ? counted : most));
}

// The part of each column of P that is rounding.
struct Noise {
  double own = 0;       // relative to its length
  double mean = 0;      // relative to the root mean square of all lengths: a product has it, whose columns may cancel
  double margin = 1;    // a column is signal only if it is longer than the noise by this factor
  double momentum = 0;  // as `mean`, from each step that rounded the momentum; independent errors, so √steps of it
  double most_steps = std::numeric_limits<double>::infinity();  // that the momentum remembers
  int64_t steps = 0;                                            // that rounded it
  const float* steps_before = nullptr;  // on P's device, or null; where it is there, `steps` is one more than it

  // `mean` of all of them.
  TORCHDION_HOST_DEVICE double total_mean() const {
    const double taken = steps_before ? static_cast<double>(*steps_before) + 1 : static_cast<double>(steps);
    return mean_after(mean, momentum, taken, most_steps);
  }
};

// The rest of noise of length 1 after orthogonalization.
template <class T>
struct NoiseLeft {
  T rms;      // its root mean square
  T longest;  // three in a thousand are longer
};

// Noise points anywhere among `rows` dimensions, and orthogonalization against `live` columns takes as many of them.
// The length of f independent normal errors has the root mean square √f and is seldom more than √f + 2. Noise that
// lies in a few rows alone loses less.
template <class T>
TORCHDION_HOST_DEVICE NoiseLeft<T> noise_left(T rows, T one_over_root_rows, T live) {
  const T rms = sqrt(rows > live ? rows - live : T(0)) * one_over_root_rows;
  return {rms, rms + 2 * one_over_root_rows};
}

}  // namespace torchdion::linalg
