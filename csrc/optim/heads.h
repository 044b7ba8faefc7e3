// Which weights of a model are those of its output layers.
#pragma once

#include <torch/nn/module.h>

#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

namespace torchdion::optim {

// The modules of a model in the order of their registration, itself first under the empty name.
using NamedModules = std::vector<std::pair<std::string, const torch::nn::Module*>>;
using Weights = std::unordered_set<const void*>;

// Those of the modules named, or, of none, those that Python's param_groups finds: see torchdion/routing.h. Throws
// c10::ValueError for a name of no module with a weight of two or more dimensions.
Weights head_weights(const NamedModules& modules, const std::vector<std::string>& heads);

}  // namespace torchdion::optim
