// Learning rate and weight decay, wherever they are.
#pragma once

#include "linalg/rates.h"

namespace torchdion::linalg::cpu {

inline double multiplier(const at::Tensor& number) { return number.defined() ? number.item<double>() : 1; }

template <class Hyperparameters>
Hyperparameters with_multipliers(Hyperparameters hyper, const Multipliers& multipliers) {
  hyper.lr *= multiplier(multipliers.lr);
  hyper.weight_decay *= multiplier(multipliers.weight_decay);
  return hyper;
}

}  // namespace torchdion::linalg::cpu
