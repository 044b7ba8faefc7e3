// What a step gives to the engine: parameters, gradients, states and options, by algorithm.
#pragma once

#include <torchdion/optimizer.h>

#include <memory>
#include <utility>
#include <vector>

#include "engine/groups.h"
#include "optim/agreement.h"
#include "optim/layouts.h"
#include "optim/owners.h"

namespace torchdion::optim {

// The lists that the engine takes, of one parameter after the other. State that is missing is made, but kept here until
// the step has been found good.
class StepInputs {
 public:
  using States = decltype(std::declval<Optimizer&>().state());

  // missing: the parameters whose gradient, which only other ranks have, is zero here.
  StepInputs(States states, const Layouts& layouts, Parts parts, Missing missing = {})
      : states_(states), layouts_(layouts), parts_(std::move(parts)), missing_(std::move(missing)) {}

  // options: the group's.
  void add(const torch::optim::OptimizerParamGroup& group, std::size_t group_index,
           const engine::GroupOptions& options);

  // True if matrices are averaged over replicas; a step may take their momenta apart.
  bool averages() const;

  void keep_new_states();

  engine::Groups groups;

 private:
  at::Tensor gradient_of(const at::Tensor& param) const;
  const ParamState& state_of(const at::Tensor& param, const algorithms::Algorithm& algorithm,
                             const engine::GroupOptions& options, int64_t index);
  // Its count of steps, which goes back to where steps count it if a program has moved it.
  at::Tensor counter_of(const at::Tensor& param, const ParamState& state);
  void append(engine::Group& group, const at::Tensor& param, const ParamState& state, const std::string& name);

  States states_;
  const Layouts& layouts_;
  Parts parts_;
  Missing missing_;
  std::vector<std::pair<void*, std::unique_ptr<ParamState>>> made_;
  int64_t index_ = 0;
};

}  // namespace torchdion::optim
