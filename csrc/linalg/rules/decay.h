// How weights move and decay, entry by entry, for all devices.
#pragma once

#include <type_traits>

#include "linalg/step_numbers.h"

namespace torchdion::linalg {

// Which entries of weights decay: all, or those that have the sign of what is subtracted (arXiv 2510.12402).
enum class Decay { all, cautious };

// What an entry x is multiplied by where u is subtracted from it: `keep`, or 1 where it does not decay.
template <Decay decay, class T>
TORCHDION_HOST_DEVICE T decay_of(T keep, T x, T u) {
  if constexpr (decay == Decay::all) return keep;
  return (x > 0 && u > 0) || (x < 0 && u < 0) ? keep : T(1);
}

// Calls f with the decay as a constant.
template <class F>
TORCHDION_HOST_DEVICE void with_constant(Decay decay, const F& f) {
  if (decay == Decay::cautious) {
    f(std::integral_constant<Decay, Decay::cautious>());
  } else {
    f(std::integral_constant<Decay, Decay::all>());
  }
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
  Decay decay = Decay::all;
  Frozen frozen = {};
  bool sign = false;  // U counts by the signs of its entries

  bool is_linear() const { return decay == Decay::all && !sign; }
};

// keep x + update u, as the rule has it.
template <class T>
TORCHDION_HOST_DEVICE T moved(T x, T u, T update, T keep, const DirectionRule& rule) {
  const T direction = rule.sign ? sign_of(u) : u;
  const T kept = rule.decay == Decay::all ? keep : decay_of<Decay::cautious>(keep, x, direction);
  return kept * x + update * direction;
}

}  // namespace torchdion::linalg
