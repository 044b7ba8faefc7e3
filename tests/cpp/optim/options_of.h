// The options that groups give a parameter.
#pragma once

#include <torchdion/optim.h>

#include <stdexcept>
#include <string>
#include <vector>

namespace torchdion {

// The algorithm of groups that leave it to the optimizer, as those of matrices do.
inline const std::string kOfTheOptimizer;

inline const DionOptions& options_of(const torch::optim::OptimizerParamGroup& group) {
  return static_cast<const DionOptions&>(group.options());
}

inline const DionOptions& options_of(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                                     const at::Tensor& param) {
  for (const torch::optim::OptimizerParamGroup& group : groups) {
    for (const at::Tensor& other : group.params()) {
      if (other.is_same(param)) return options_of(group);
    }
  }
  throw std::out_of_range("no group holds the parameter");
}

}  // namespace torchdion
