// Steps that a CUDA graph may capture: what lies on the devices then, and what the host leaves to them.
#pragma once

#include <torchdion/optimizer.h>

#include <vector>

#include "optim/agreement.h"
#include "optim/layouts.h"

namespace torchdion::optim {

// Whether a graph records what is done to the parameter, or to any of these groups: nothing is written before a replay.
bool is_captured(const at::Tensor& param);
bool is_captured(const std::vector<torch::optim::OptimizerParamGroup>& groups);

// Gives the tensors of the options the numbers that were loaded into these.
void write_rates(const Options& options);
// Throws c10::ValueError where groups that share a tensor were given different numbers.
void check_shared_rates(const std::vector<torch::optim::OptimizerParamGroup>& groups);

// Where ranks exchange no messages: zero are the missing gradients of parameters that replicas have stepped.
Missing missing_when_alone(const Optimizer& optimizer, const Layouts& layouts);

// By all parameters together, also in replays. Waits for their devices.
double steps_taken(const Optimizer& optimizer);

}  // namespace torchdion::optim
