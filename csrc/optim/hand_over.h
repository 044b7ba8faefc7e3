// What a step hands to the engine: parameters, gradients, states and hyperparameters, by algorithm.
#pragma once

#include <torchdion/optim.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/groups.h"
#include "optim/agreement.h"
#include "optim/layouts.h"

namespace torchdion::optim {

// The lists that the engine takes, gathered parameter by parameter. State that is missing is made, but kept here until
// the step has been found good.
class Gathering {
 public:
  using States = decltype(std::declval<Dion&>().state());

  // missing: the parameters whose gradient, which only other ranks have, is zero here.
  Gathering(States states, const Layouts& layouts, Missing missing = {})
      : states_(states), layouts_(layouts), missing_(std::move(missing)) {}

  void add(const torch::optim::OptimizerParamGroup& group, std::size_t group_index);

  // Whether matrices are averaged over replicas, whose momenta a step may take apart.
  bool averages() const;

  void keep_new_states();

  engine::Groups groups;

 private:
  at::Tensor gradient_of(const at::Tensor& param) const;
  const DionParamState& state_of(const at::Tensor& param, const DionOptions& options, int64_t index);

  void add_matrix(engine::DionGroup& group, const at::Tensor& param, const DionParamState& state,
                  const DionOptions& options, const std::string& name);
  template <class Group>
  void append(Group& group, const at::Tensor& param, const DionParamState& state);

  States states_;
  const Layouts& layouts_;
  Missing missing_;
  std::vector<std::pair<void*, std::unique_ptr<DionParamState>>> made_;
  int64_t index_ = 0;
};

}  // namespace torchdion::optim
