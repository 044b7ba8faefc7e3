// The rules of Lion and AdamW, one entry at a time, over lists of tensors of any sizes.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchdion/options.h>

#include <vector>

namespace torchdion::linalg {

// Entry i of each list belongs to parameter i. All on one device, contiguous, and those of one parameter alike in
// shape.
struct ElementwiseLists {
  std::vector<at::Tensor> X, G, M;  // parameters, gradients, momenta
  std::vector<at::Tensor> V;        // second moments; AdamW only
  std::vector<int64_t> step;        // this one included; AdamW only
  double gradient_factor = 1;       // of G
  int64_t* zeroed = nullptr;  // entries of G that are not finite count as zero, and here, in the memory of the device;
                              // null: they propagate
};

void lion_(const ElementwiseLists& lists, const LionHyperparameters& hyper);
void adamw_(const ElementwiseLists& lists, const AdamWHyperparameters& hyper);

}  // namespace torchdion::linalg
