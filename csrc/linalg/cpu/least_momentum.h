// linalg/least_momentum.h for the types that torch stores.
#pragma once

#include <ATen/OpMathType.h>

#include <type_traits>

#include "linalg/least_momentum.h"

namespace torchdion::linalg::cpu {

// Of momenta stored as S, in the type that computes them.
template <class S>
constexpr at::opmath_type<S> least_momentum() {
  if constexpr (std::is_same_v<S, double>) return kLeastMomentumFP64;
  if constexpr (std::is_same_v<S, at::Half>) return static_cast<float>(kLeastMomentumFP16);
  return static_cast<at::opmath_type<S>>(kLeastMomentumFP32);
}

}  // namespace torchdion::linalg::cpu
