// The rules for parameters that are no matrices: one element at a time, over whole tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchdion/layout.h>
#include <torchdion/options.h>

#include <vector>

#include "comm/task.h"
#include "linalg/elementwise.h"

namespace torchdion::algorithms {

struct ElementwiseBatch {
  linalg::ElementwiseLists lists;
  Axis replicas = {};                // hold copies whose gradients differ
  std::vector<at::Tensor> own = {};  // then the gradients of this one, and lists.G views of `mean`, which is zero
  at::Tensor mean = {};
};

// G ← the mean of the replicas' own gradients.
comm::Task<> average_gradients(ElementwiseBatch batch);

// Lion (arXiv 2302.06675): X ← (1 − η λ) X − η sign(β₁ M + (1 − β₁) G);  M ← β₂ M + (1 − β₂) G.
comm::Task<> lion(ElementwiseBatch batch, LionHyperparameters hyper);

// AdamW (arXiv 1711.05101) with bias correction, as torch.optim.AdamW computes it.
comm::Task<> adamw(ElementwiseBatch batch, AdamWHyperparameters hyper);

}  // namespace torchdion::algorithms
