// What a state that is loaded must be, and how it is stored.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "algorithms/all.h"

namespace torchdion::engine {

// What FP32 counts to in ones, where a count of steps stays.
inline constexpr double kMostSteps = 0x1p24;

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
