// The bits of numbers. No C++20: nvcc compiles this.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "linalg/host_device.h"

namespace torchdion::linalg {

TORCHDION_HOST_DEVICE uint32_t bits_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

TORCHDION_HOST_DEVICE float float_of(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

// Magnitudes as integers compare as the numbers do, NaN above all.
template <class T>
struct Magnitude {
  using Bits = std::conditional_t<sizeof(T) == sizeof(float), uint32_t, uint64_t>;
};

template <class T>
TORCHDION_HOST_DEVICE typename Magnitude<T>::Bits magnitude_of(T entry) {
  typename Magnitude<T>::Bits bits;
  memcpy(&bits, &entry, sizeof(bits));
  return bits & ~(typename Magnitude<T>::Bits(1) << (8 * sizeof(bits) - 1));
}

// Those of a number that is not negative, rounded to its first 24 significant bits, ties to even: what differs in the
// order of a sum alone is equal, but near a boundary between two such numbers. NaN stays above all.
TORCHDION_HOST_DEVICE Magnitude<double>::Bits leading_bits_of(double number) {
  constexpr int kDropped = 53 - 24;
  constexpr Magnitude<double>::Bits kOne = 1, kMask = (kOne << kDropped) - 1, kInfinite = kOne * 0x7ff << 52;
  const Magnitude<double>::Bits bits = magnitude_of(number);
  if (bits >= kInfinite) return bits;
  return (bits + (kMask >> 1) + (bits >> kDropped & 1)) & ~kMask;
}

// What magnitude_of() made of a number that is not negative.
TORCHDION_HOST_DEVICE double number_of(Magnitude<double>::Bits bits) {
  double number = 0;
  memcpy(&number, &bits, sizeof(number));
  return number;
}

}  // namespace torchdion::linalg
