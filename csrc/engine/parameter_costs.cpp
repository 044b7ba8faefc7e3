#include "engine/parameter_costs.h"

#include <ATen/ops/empty.h>

#include <map>

#include "engine/shapes.h"
#include "engine/state.h"

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
      ParameterCost cost{alike.group, i, alike.layout, shape.decoupled, {}, 0};
      cost.cost = group.algorithm->cost(shape, alike.layout, group.options);
      for (const std::vector<at::Tensor>& state : group.states) {
        cost.state_bytes += state[i].numel() * static_cast<int64_t>(state[i].element_size());
      }
      costs.push_back(std::move(cost));
    }
  }
  return costs;
}

std::vector<ParameterCost> costs_of(const SharedGroups& groups) {
  std::vector<ParameterCost> costs = costs_of(plan_of(groups), groups.updated());
  std::map<std::pair<std::size_t, std::size_t>, std::size_t> found;
  for (std::size_t k = 0; k < costs.size(); ++k) {
    ParameterCost& cost = costs[k];
    if (const Bucket* bucket = groups.bucket_of(cost.group)) {
      cost.parameter = bucket->parameters[bucket->own[cost.parameter]];
    }
    cost.group = groups.given_group(cost.group);
    found.emplace(std::pair(cost.group, cost.parameter), k);
  }
  for (std::size_t g = 0; g < groups.updated().all.size(); ++g) {
    const Bucket* bucket = groups.bucket_of(g);
    if (!bucket) continue;
    const std::size_t group = groups.given_group(g);
    for (std::size_t member = 0; member < bucket->parameters.size(); ++member) {
      const std::size_t i = bucket->parameters[member];
      const auto [place, is_new] = found.try_emplace(std::pair(group, i), costs.size());
      const Layout& layout = layout_of(groups.given().all[group].layouts, i);
      if (is_new) costs.push_back({group, i, layout, false, {}, 0});
      ParameterCost& cost = costs[place->second];
      cost.layout = layout;
      algorithms::add(bucket->averages ? cost.cost.replicas : cost.cost.copies, exchange_cost(*bucket, member));
    }
  }
  return costs;
}

namespace {

Group planned(const ParameterGroup& parameters) {
  const algorithms::Options& options = parameters.options.values;
  const algorithms::Algorithm& algorithm = *parameters.parameters.front().algorithm;
  Group group = group_of(algorithm, parameters.options, at::kMeta);
  group.states.resize(algorithm.states.size());
  group.whole_factors.resize(algorithms::factors_of(algorithm).size());
  for (const ParameterView& view : parameters.parameters) {
    const at::TensorOptions like = view.tensor.options();
    group.X.push_back(view.tensor);
    group.G.push_back(view.tensor);
    group.layouts.push_back(view.layout);
    if (view.part) group.shares.push_back(view.part->shares);
    if (view.part) group.steps.push_back(at::empty({}, like));
    auto factors = group.whole_factors.begin();
    for (std::size_t k = 0; k < algorithm.states.size(); ++k) {
      const algorithms::State& state = algorithm.states[k];
      std::vector<int64_t> sizes = piece_of_state_sizes(state, view.sizes(), view.tensor.sizes(), options, view.layout);
      if (view.part) sizes = view.part->sizes_of(sizes);
      const at::ScalarType dtype = options.dtype_or(state.dtype_option, view.tensor.scalar_type());
      group.states[k].push_back(at::empty(sizes, like.dtype(dtype)));
      if (state.shape != algorithms::StateShape::factor) continue;
      factors++->push_back(whole_state_sizes(state, view.sizes(), options));
    }
  }
  return group;
}

}  // namespace

std::vector<ParameterCost> costs_of(std::vector<ParameterGroup> groups) {
  resolve(groups);
  Groups all;
  for (const ParameterGroup& group : groups) all.all.push_back(planned(group));
  return costs_of(SharedGroups(std::move(all)));
}

}  // namespace torchdion::engine
