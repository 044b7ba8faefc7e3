// States as checkpoints have them: what they must be, and how they are stored.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "engine/parameter.h"

namespace torchdion::engine {

// FP32 counts to it in ones: a count of steps beyond would stay.
inline constexpr double kMostSteps = 0x1p24;

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
// Throws c10::ValueError for one that is not of the parameter's algorithm, nor of its shape.
ParameterState loaded(const SavedState& saved, const ParameterView& view, const algorithms::Options& group);

// Each throws c10::ValueError; `name` is the parameter's.

// A tensor is dense, floating-point, and has memory.
void check_loaded_tensor(const at::Tensor& tensor, const std::string& state, const std::string& name);
// A whole state of these sizes is one of a parameter of these whole sizes.
void check_loaded_sizes(const algorithms::State& state, at::IntArrayRef loaded, at::IntArrayRef sizes,
                        const algorithms::Options& group, const std::string& name);
// `got`: the count as a sentence shows it.
void check_loaded_step(double count, const std::string& got, const std::string& name);

// A copy. A finite number beyond the range of the dtype becomes its largest, as steps store it.
at::Tensor stored_as(const at::Tensor& state, at::ScalarType dtype, c10::Device device);

}  // namespace torchdion::engine
