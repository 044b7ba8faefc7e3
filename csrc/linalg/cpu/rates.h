// Learning rate and weight decay, wherever they are.
#pragma once

#include "linalg/rates.h"

namespace torchdion::linalg::cpu {

inline Rates rates_of(const FactorRule& rule) {
  const auto multiplier = [](const at::Tensor& number) { return number.defined() ? number.item<double>() : 1; };
  return {rule.rates.lr * multiplier(rule.multipliers.lr),
          rule.rates.weight_decay * multiplier(rule.multipliers.weight_decay)};
}

}  // namespace torchdion::linalg::cpu
