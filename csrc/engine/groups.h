// What the fronts hand to the engine: parameters that share their hyperparameters, entry i of each list belonging to
// parameter i. M and V are as large as X and contiguous. Of cut parameters all tensors are this rank's pieces;
// `layouts` is empty where every parameter of the group is whole and has no copies to average with. `multipliers` are
// of hyperparameters.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchdion/layout.h>
#include <torchdion/options.h>

#include <vector>

#include "engine/matrix_form.h"
#include "linalg/rates.h"

namespace torchdion::engine {

struct DionGroup {
  std::vector<at::Tensor> X, G, M;
  std::vector<at::Tensor> Q;      // [stack..., rows, r], contiguous
  std::vector<at::Tensor> steps;  // one number each, which the step increments; see Groups::capturable
  DionHyperparameters hyper;
  MatrixForm form;
  Orientation orientation = Orientation::right;  // of a square Q; the shape of any other tells
  std::vector<Layout> layouts;
  std::vector<std::vector<int64_t>> whole_Q;  // the sizes of each Q over all ranks; empty: those of Q
  linalg::Multipliers multipliers;
  // Matrices whose gradient is exactly zero over all ranks keep weight, momentum and Q.
  bool skip_zero_gradients = false;
  // Then, of each parameter: one FP32 number for each of its matrices, which a step makes not 0 where that is so.
  std::vector<at::Tensor> unchanged = {};
};

struct LionGroup {
  std::vector<at::Tensor> X, G, M, steps;
  LionHyperparameters hyper;
  std::vector<Layout> layouts;
  linalg::Multipliers multipliers;
};

struct AdamWGroup {
  std::vector<at::Tensor> X, G, M, V, steps;
  AdamWHyperparameters hyper;
  std::vector<Layout> layouts;
  linalg::Multipliers multipliers;
};

struct Groups {
  std::vector<DionGroup> dion;
  std::vector<LionGroup> lion;
  std::vector<AdamWGroup> adamw;
  // A graph may capture the step: `steps` are FP32 numbers on the parameters' devices, all that the step reads anew
  // lies there, and the host waits for none. Else `steps` are on the CPU, and multipliers undefined.
  bool capturable = false;

  template <class Body>
  void for_each(const Body& body) {
    for (DionGroup& group : dion) body(group);
    for (LionGroup& group : lion) body(group);
    for (AdamWGroup& group : adamw) body(group);
  }
};

// What a gradient scaler (torch.amp.GradScaler) says of all gradients. Both hold one number, on any device; undefined
// ones say nothing.
struct GradientScaling {
  at::Tensor scale;      // the gradients were multiplied by this
  at::Tensor found_inf;  // not 0: some entry overflowed, and the step is to be left out
};

}  // namespace torchdion::engine
