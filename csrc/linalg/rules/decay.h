// Weight decay of one entry, for all devices.
#pragma once

#include "linalg/host_device.h"

namespace torchdion::linalg {

// What an entry x is multiplied by where u is subtracted from it: `keep`, or, under cautious weight decay (arXiv
// 2510.12402), `opposed`, which is 1, where x and u have no common sign. Without caution both numbers are one.
template <class T>
struct Decay {
  T keep, opposed;

  TORCHDION_HOST_DEVICE Decay(T keep, bool cautious) : keep(keep), opposed(cautious ? T(1) : keep) {}
  TORCHDION_HOST_DEVICE T of(T x, T u) const { return (x > 0 && u > 0) || (x < 0 && u < 0) ? keep : opposed; }
};

// The sign of an entry; a NaN stays one: it must reach the weights.
template <class T>
TORCHDION_HOST_DEVICE T sign_of(T u) {
  return u > 0 ? T(1) : u < 0 ? T(-1) : u;
}

// How a direction U moves weights X.
struct DirectionRule {
  bool sign = false;      // U counts by the signs of its entries
  bool cautious = false;  // weights decay where they have the sign of the direction alone
};

// keep x + update u
template <class T>
TORCHDION_HOST_DEVICE T moved(T x, T u, T update, const Decay<T>& decay, bool by_sign) {
  const T direction = by_sign ? sign_of(u) : u;
  return decay.of(x, direction) * x + update * direction;
}

}  // namespace torchdion::linalg
