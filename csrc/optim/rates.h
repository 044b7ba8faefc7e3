// Learning rates and weight decays that are tensors.
#pragma once

#include <torchdion/optimizer.h>

#include <vector>

namespace torchdion::optim {

// Gives the tensors of the options the numbers that were loaded into these.
void write_rates(const Options& options);
// Throws c10::ValueError where groups that share a tensor were given different numbers.
void check_shared_rates(const std::vector<torch::optim::OptimizerParamGroup>& groups);

}  // namespace torchdion::optim
