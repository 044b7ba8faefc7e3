// The rules of Lion and AdamW, one entry at a time, over lists of tensors of any sizes.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchdion/options.h>

#include <vector>

#include "linalg/rates.h"
#include "linalg/step_numbers.h"

namespace torchdion::linalg {

// Entry i of each list belongs to parameter i. All on one device, contiguous, and those of one parameter alike in
// shape.
struct ElementwiseLists {
  std::vector<at::Tensor> X, G, M;             // parameters, gradients, momenta
  std::vector<at::Tensor> V;                   // second moments; AdamW only
  std::vector<int64_t> step;                   // this one included; AdamW only
  std::vector<const float*> device_step = {};  // or, in the memory of the device, this one not included
  GradientRule rule = {};
  Multipliers multipliers = {};
};

void lion_(const ElementwiseLists& lists, const LionHyperparameters& hyper);
void adamw_(const ElementwiseLists& lists, const AdamWHyperparameters& hyper);

}  // namespace torchdion::linalg
