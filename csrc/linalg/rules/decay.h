// Weight decay of one entry, for all devices.
#pragma once

#include "linalg/host_device.h"

namespace torchdion::linalg {

// What an entry x is multiplied by where u is subtracted from it: `keep`; under cautious weight decay (arXiv
// 2510.12402) 1 where they have no common sign.
template <bool cautious, class T>
TORCHDION_HOST_DEVICE T decay_of(T keep, T x, T u) {
  if constexpr (!cautious) return keep;
  return (x > 0 && u > 0) || (x < 0 && u < 0) ? keep : T(1);
}

// The sign of an entry; a NaN stays one: it must reach the weights.
template <class T>
TORCHDION_HOST_DEVICE T sign_of(T u) {
  return u > 0 ? T(1) : u < 0 ? T(-1) : u;
}

// The sign of what is longer than `least`, else 0; NaN of what is not finite. Without branches, for loops of many.
template <class T>
TORCHDION_HOST_DEVICE T sign_above(T u, T least) {
  return (u > least ? T(1) : T(0)) - (u < -least ? T(1) : T(0)) + (u - u);
}

// How a direction U moves weights X.
struct DirectionRule {
  bool sign = false;      // U counts by the signs of its entries
  bool cautious = false;  // weights decay where they have the sign of the direction alone
};

// keep x + update u, as the rule has it.
template <class T>
TORCHDION_HOST_DEVICE T moved(T x, T u, T update, T keep, const DirectionRule& rule) {
  const T direction = rule.sign ? sign_of(u) : u;
  const T kept = rule.cautious ? decay_of<true>(keep, x, direction) : keep;
  return kept * x + update * direction;
}

}  // namespace torchdion::linalg
