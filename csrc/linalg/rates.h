// Learning rate and weight decay, where they lie in the memory of a device: a captured graph reads them anew at every
// replay.
#pragma once

#include <ATen/core/Tensor.h>

#include "linalg/step_numbers.h"

namespace torchdion::linalg {

// Single real numbers on the device of the parameters, which multiply the hyperparameters of these names; undefined: 1.
struct Multipliers {
  at::Tensor lr = {}, weight_decay = {};

  bool defined() const { return lr.defined() || weight_decay.defined(); }
  Multipliers on(c10::Device device) const {
    const auto moved = [&](const at::Tensor& number) {
      return number.defined() ? number.to(device, /*non_blocking=*/device.is_cuda()) : number;
    };
    return {moved(lr), moved(weight_decay)};
  }
};

// What update_factors() is told.
struct FactorRule {
  double shape_factor = 1;
  Rates rates = {};
  Multipliers multipliers = {};
  Frozen frozen = {};

  // Waits for a device that has multipliers.
  Rates rates_on_host() const {
    const auto number = [](const at::Tensor& multiplier) {
      return multiplier.defined() ? multiplier.item<double>() : 1;
    };
    return {rates.lr * number(multipliers.lr), rates.weight_decay * number(multipliers.weight_decay)};
  }
};

// The two UpdateFactors, in the dtype and on the device of the options.
at::Tensor device_factors(const FactorRule& rule, at::TensorOptions options);

}  // namespace torchdion::linalg
