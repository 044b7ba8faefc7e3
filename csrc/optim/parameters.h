// What a parameter and its state are to the optimizer: which algorithm updates it, and whether any can.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchdion/optimizer.h>

#include <string>
#include <vector>

#include "algorithms/all.h"

namespace torchdion::optim {

// Of options that name an algorithm.
const algorithms::Algorithm& algorithm_of(const at::Tensor& param, const Options& options);

// Leaves out what a group's parameters hold again, of which a warning tells, as torch does in Python.
void keep_each_once(std::vector<at::Tensor>& params, const std::string& where);

// True if it neither asks for a gradient nor has one.
bool is_left_alone(const at::Tensor& param);

// True if no step asks more of it than that it gets no gradient: it is left alone, and none could compute with it.
bool is_passed_over(const at::Tensor& param);

// True if it may ever have states, by what does not change in a training.
bool may_have_states(const at::Tensor& param, const Options& options);

// Throws c10::ValueError or c10::NotImplementedError with one sentence for a parameter with which no step can compute.
void check_trained(const at::Tensor& param, const std::string& name);

// Throws as well for any other that no algorithm can update, unless it is left alone; `name` is its name there.
void check_parameter(const at::Tensor& param, const Options& options, const std::string& name);

// Warns of a parameter of three dimensions whose group does not say what the first one counts.
void warn_of_a_likely_stack(const at::Tensor& param, const Options& options, const std::string& name);

// Throws c10::ValueError for a state that another optimizer's code has put there.
const ParamState& ours(const torch::optim::OptimizerParamState& state);

// True if some of its tensors are ours: before the first step a program may keep its own there.
bool is_begun(const ParamState& state);

// The tensors of a state, but for the count of steps.
std::vector<std::string> names_of(const ParamState& state);

}  // namespace torchdion::optim
