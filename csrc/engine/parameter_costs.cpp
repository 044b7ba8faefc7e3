#include "engine/parameter_costs.h"

#include "engine/owners.h"

namespace torchdion::engine {

std::vector<ParameterCost> costs_of(const Plan& plan, const Groups& groups) {
  std::vector<ParameterCost> costs;
  for (const Alike& alike : plan.alike) {
    const Group& group = groups.all[alike.group];
    int64_t begin = 0;
    for (std::size_t k = 0; k < alike.members.size(); ++k) {
      const std::size_t i = alike.members[k];
      algorithms::BatchShape shape = alike.shape;
      shape.count = alike.counts[k];
      shape.numel = group.X[i].numel();
      shape.owners = owners_of(alike, begin, begin + shape.count);
      begin += shape.count;
      ParameterCost cost{alike.group, i, &alike, shape.decoupled, {}, 0};
      cost.cost = group.algorithm->cost(shape, alike.layout, group.options);
      for (const std::vector<at::Tensor>& state : group.states) {
        cost.state_bytes += state[i].numel() * static_cast<int64_t>(state[i].element_size());
      }
      costs.push_back(std::move(cost));
    }
  }
  return costs;
}

}  // namespace torchdion::engine
