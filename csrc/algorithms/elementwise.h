// The rules for parameters that are no matrices: one element at a time, over whole tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchdion/layout.h>
#include <torchdion/options.h>

#include <vector>

#include "comm/task.h"

namespace torchdion::algorithms {

struct ElementwiseBatch {
  std::vector<at::Tensor> X, G, M;   // parameters, gradients, momenta: contiguous, alike in shape
  std::vector<at::Tensor> V;         // second moments; AdamW only
  std::vector<int64_t> step;         // of each parameter, this step included; AdamW only
  double gradient_factor = 1;        // of G: what a gradient scaler's factor is undone by
  int64_t* zeroed = nullptr;         // entries of G that are not finite count as zero, and here; null: they propagate
  Axis replicas = {};                // hold copies whose gradients differ
  std::vector<at::Tensor> own = {};  // then the gradients of this one, and G views of `mean`, which is zero
  at::Tensor mean = {};
};

// G ← the mean of the replicas' own gradients.
comm::Task<> average_gradients(ElementwiseBatch batch);

// Lion (arXiv 2302.06675): X ← (1 − η λ) X − η sign(β₁ M + (1 − β₁) G);  M ← β₂ M + (1 − β₂) G.
comm::Task<> lion(ElementwiseBatch batch, LionHyperparameters hyper);

// AdamW (arXiv 1711.05101) with bias correction, as torch.optim.AdamW computes it.
comm::Task<> adamw(ElementwiseBatch batch, AdamWHyperparameters hyper);

}  // namespace torchdion::algorithms
