// The rules of Lion and AdamW, one entry at a time, over lists of tensors of any sizes.
//
// A rule is a struct of rules/ that the loops of all devices (cpu/elementwise.cpp, cuda/programs/lists.h) take:
// - Number, the type it computes in, and Hyperparameters;
// - states, how many tensors it keeps for a parameter, of which the first is the momentum;
// - corrections, how many numbers it needs that cost more than an entry: correction(hyper, step, i), with this step
//   included, is computed once for a tensor on a CPU and once for a block on a GPU;
// - Rule(hyper, rates, least_momentum, corrections): what the entries of one tensor have in common (least_momentum.h);
// - rule.update<decay>(x, g, states...) updates an entry and its states; g has its factor.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "linalg/rates.h"
#include "linalg/rules/adamw.h"
#include "linalg/rules/lion.h"
#include "linalg/step_numbers.h"

namespace torchdion::linalg {

// Entry i of each list belongs to parameter i. All on one device, contiguous, and those of one parameter alike in
// shape.
struct ElementwiseLists {
  std::vector<at::Tensor> X, G;                 // parameters, gradients
  std::vector<std::vector<at::Tensor>> states;  // in the order of the rule: of Lion M, of AdamW M and V
  std::vector<int64_t> step;                    // this one included; of rules with corrections
  std::vector<const float*> device_step = {};   // or, in the memory of the device, this one not included
  GradientRule rule = {};
  Decay decay = Decay::all;
  FactorRule factors = {};
};

void lion_(const ElementwiseLists& lists, const LionHyperparameters& hyper);
void adamw_(const ElementwiseLists& lists, const AdamWHyperparameters& hyper);

}  // namespace torchdion::linalg
