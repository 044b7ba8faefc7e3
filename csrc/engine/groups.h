// What the fronts give to the engine: groups of parameters, and what their options must be together.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchdion/layout.h>
#include <torchdion/options.h>

#include <string>
#include <vector>

#include "algorithms/all.h"
#include "comm/sums.h"
#include "linalg/rates.h"

namespace torchdion::engine {

// The options of a parameter group. A tensor of one number in the place of a rate is read anew by every step.
struct GroupOptions {
  algorithms::Options values;
  at::Tensor lr = {}, weight_decay = {};
};

// True if these are the same options with the same values, but for learning rates and weight decays.
bool differ_in_rates_at_most(const algorithms::Options& one, const algorithms::Options& other);

// Of the options that the group has. Throws c10::ValueError; `where` says whose they are: " (parameter group 2)".
void check_combinations(const algorithms::Options& group, const std::string& where);

// Of all groups: options of the optimizer are alike. Throws c10::ValueError that names the first group that differs;
// whose: " of the state dict", say.
void check_alike(const std::vector<const algorithms::Options*>& groups, const std::string& whose = "");

// Parameters that one algorithm updates with the same options; entry i of each list belongs to parameter i. Of cut
// parameters all tensors are this rank's pieces. States are contiguous.
struct Group {
  const algorithms::Algorithm* algorithm = nullptr;
  algorithms::Options options;  // of the algorithm
  std::vector<at::Tensor> X, G;
  std::vector<std::vector<at::Tensor>> states;  // states[k][i]: state k of the algorithm's declaration
  std::vector<at::Tensor> steps;                // one number each, which the step increments; see Groups::capturable
  std::vector<Layout> layouts;                  // empty where all are whole and have no copies to average with
  // whole_factors[f][i]: the sizes of factor f of the declaration over all ranks; empty: those of the factors here.
  std::vector<std::vector<std::vector<int64_t>>> whole_factors;
  // shares[i]: under owners="shard" how many entries of dimension 0 of parameter i each rank of layouts[i]'s replicas
  // or copies owns; its states are those of this rank's part. See shares_of(). Empty: all ranks have all.
  std::vector<comm::Shares> shares = {};
  linalg::Multipliers multipliers;  // of options
  // Under skip_zero_gradients, of each parameter: one FP32 number for each of its matrices, which a step makes not 0
  // where the gradient is exactly zero over all ranks.
  std::vector<at::Tensor> unchanged = {};

  bool takes_matrices() const { return algorithm->takes_matrices(); }
};

// One without parameters yet. Where steps are capturable, rates that are tensors on the parameters' kind of device
// become multipliers; of others the host takes the numbers, for which it may wait.
Group group_of(const algorithms::Algorithm& algorithm, const GroupOptions& options, c10::DeviceType device);

// The number in one of `steps` on the CPU: how many steps a parameter has taken.
int64_t steps_taken(const at::Tensor& step);

struct Groups {
  std::vector<Group> all;
  // A graph may capture the step: `steps` are FP32 numbers on the parameters' devices, all that the step reads anew
  // lies there, and the host waits for none. Else `steps` are on the CPU, and multipliers undefined.
  bool capturable = false;
};

// What a gradient scaler (torch.amp.GradScaler) says of all gradients. Both hold one number, on any device; undefined
// ones say nothing.
struct GradientScaling {
  at::Tensor scale;      // the gradients were multiplied by this
  at::Tensor found_inf;  // not 0: some entry overflowed, and the step is to be left out
};

}  // namespace torchdion::engine
