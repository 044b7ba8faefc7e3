// States as checkpoints have them: what they must be, and how they are stored.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "engine/parameter.h"

namespace torchdion::engine {

// A tensor of a saved state.
struct SavedTensor {
  std::string name;
  at::Tensor tensor;
  // Over all ranks, where the tensor is this rank's piece or an owner's part; none: it is whole.
  std::optional<std::vector<int64_t>> whole = {};
  // The first entry of an owner's part in dimension 0; none: the tensor is no part.
  std::optional<int64_t> begin = {};
};

// The state of a parameter as a checkpoint has it, by the names that states have here.
struct SavedState {
  std::vector<SavedTensor> tensors;  // in the order of algorithms::states()
  double step = 0;
  std::string shown_step = {};  // the count as a sentence shows it
  double divisor = 1;           // of the momentum
};

// The state of a parameter that takes it: this rank's, copied, in the dtypes that the options of its group ask for.
// A finite number beyond the range of its dtype becomes the largest there, as steps store it. Throws c10::ValueError
// for one that is not of the parameter's algorithm, nor of its shape.
ParameterState loaded(const SavedState& saved, const ParameterView& view, const algorithms::Options& group);

}  // namespace torchdion::engine
