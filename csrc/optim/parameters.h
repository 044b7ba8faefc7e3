// What a parameter and its state are to the optimizer: which algorithm updates it, and whether any can.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchdion/optimizer.h>

#include <string>
#include <vector>

#include "engine/groups.h"

namespace torchdion::optim {

// Of options that name an algorithm.
const algorithms::Algorithm& algorithm_of(const at::Tensor& param, const Options& options);

// Leaves out what a group's parameters hold again, of which a warning tells, as torch does in Python.
void keep_each_once(std::vector<at::Tensor>& params, const std::string& where);

// Throws c10::ValueError or c10::NotImplementedError with one sentence for a parameter that no algorithm can update,
// unless it is left alone; `name` is its name there.
void check_parameter(const at::Tensor& param, const engine::GroupOptions& options, const std::string& name);

// Warns of a parameter of three dimensions whose group does not say what the first one counts.
void warn_of_a_likely_stack(const at::Tensor& param, const Options& options, const std::string& name);

// Throws c10::ValueError for a state that another optimizer's code has put there.
const ParamState& ours(const torch::optim::OptimizerParamState& state);

}  // namespace torchdion::optim
