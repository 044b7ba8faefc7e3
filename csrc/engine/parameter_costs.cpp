#include "engine/parameter_costs.h"

#include "engine/owners.h"

namespace torchdion::engine {

std::vector<ParameterCost> costs_of(const Plan& plan, const Groups& groups) {
  std::vector<ParameterCost> costs;
  OwnedMatrices owned;
  for (const Alike& alike : plan.alike) {
    const Group& group = groups.all[alike.group];
    for (std::size_t k = 0; k < alike.members.size(); ++k) {
      const std::size_t i = alike.members[k];
      algorithms::BatchShape shape = alike.shape;
      shape.count = alike.counts[k];
      shape.numel = group.X[i].numel();
      if (group.takes_matrices()) shape.assigned = assign_owners(shape, alike.layout, owned);
      ParameterCost cost{alike.group, i, &alike, shape.compressed, {}, 0};
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
