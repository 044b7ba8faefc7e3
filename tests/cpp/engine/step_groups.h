// Parameters for the tests of the step, with gradients and state, and whether one has changed them.
#pragma once

#include <gtest/gtest.h>

#include <limits>

#include "algorithms/options_by_name.h"
#include "engine/groups.h"
#include "engine/matrix_form.h"
#include "tensors.h"

namespace torchdion::engine {

struct DionParameter {
  std::vector<int64_t> sizes, q_sizes;
};

// One without parameters.
inline Group group_under(std::string_view algorithm, algorithms::NamedValues values = {}) {
  Group group;
  group.algorithm = &algorithms::algorithm(algorithm);
  group.options = algorithms::options_of(*group.algorithm, values);
  return group;
}

// The indices of the states.
constexpr std::size_t kMomentum = 0, kQ = 1, kVariance = 1;
inline const algorithms::Algorithm& kOfDion = algorithms::algorithm("dion");
inline const algorithms::State &kMomentumOfDion = kOfDion.states[kMomentum], &kQOfDion = kOfDion.states[kQ];

inline Group dion_group(const std::vector<DionParameter>& parameters, MatrixForm form = {}) {
  Group group = group_under(
      "dion", {{"batch_dims", form.batch_dims}, {"blocks", form.blocks}, {"fan_in_first", form.fan_in_first}});
  group.states.resize(2);
  uint64_t seed = 0;
  for (const DionParameter& p : parameters) {
    group.X.push_back(normal(p.sizes, ++seed));
    group.G.push_back(normal(p.sizes, ++seed));
    group.states[kMomentum].push_back(normal(p.sizes, ++seed));
    group.states[kQ].push_back(normal(p.q_sizes, ++seed));
    group.steps.push_back(at::zeros({}));
  }
  return group;
}

inline Group elementwise_group(std::string_view algorithm, const std::vector<std::vector<int64_t>>& shapes) {
  Group group = group_under(algorithm);
  group.states.resize(group.algorithm->states.size());
  uint64_t seed = 100;
  for (const std::vector<int64_t>& sizes : shapes) {
    group.X.push_back(normal(sizes, ++seed));
    group.G.push_back(normal(sizes, ++seed));
    for (std::vector<at::Tensor>& state : group.states) state.push_back(at::zeros(sizes, at::kDouble));
    group.steps.push_back(at::zeros({}));
  }
  return group;
}

// Every role that a parameter can have, and where it is in all_groups().
constexpr std::size_t kMatrices = 0, kExperts = 1, kUnderLion = 2, kUnderAdamW = 3;

inline Groups all_groups() {
  Groups groups;
  groups.all.push_back(dion_group({{{12, 20}, {12, 4}}, {{20, 12}, {12, 6}}, {{12, 20}, {12, 4}}, {{9, 9}, {9, 9}}}));
  groups.all.push_back(dion_group({{{3, 8, 10}, {3, 8, 2}}}, {.batch_dims = 1}));
  groups.all.push_back(elementwise_group("lion", {{7}, {3, 4}, {}}));
  groups.all.push_back(elementwise_group("adamw", {{7}, {2000}}));
  return groups;
}

inline void put_two_nonfinite(Groups& groups) {
  groups.all[kMatrices].G[0][3][4] = std::numeric_limits<double>::quiet_NaN();
  groups.all[kUnderAdamW].G[1][7] = std::numeric_limits<double>::infinity();
}

// The lists of a group, each with an entry for every parameter.
inline std::vector<std::vector<at::Tensor>*> lists_of(Group& group) {
  std::vector<std::vector<at::Tensor>*> lists = {&group.X, &group.G, &group.steps};
  for (std::vector<at::Tensor>& state : group.states) lists.push_back(&state);
  return lists;
}

// A group of one of the parameters.
inline Group single(const Group& group, std::size_t i) {
  Group one = group;
  for (std::vector<at::Tensor>* list : lists_of(one)) *list = {(*list)[i]};
  return one;
}

inline std::vector<at::Tensor*> tensors_of(Groups& groups) {
  std::vector<at::Tensor*> all;
  for (Group& group : groups.all) {
    for (std::vector<at::Tensor>* list : lists_of(group)) {
      for (at::Tensor& tensor : *list) all.push_back(&tensor);
    }
  }
  return all;
}

inline std::vector<at::Tensor> snapshot(Groups& groups) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor* tensor : tensors_of(groups)) copies.push_back(tensor->clone());
  return copies;
}

inline void expect_unchanged(Groups& groups, const std::vector<at::Tensor>& before) {
  const std::vector<at::Tensor*> now = tensors_of(groups);
  ASSERT_EQ(now.size(), before.size());
  for (std::size_t i = 0; i < now.size(); ++i) EXPECT_TRUE(bitwise_equal(*now[i], before[i])) << "tensor " << i;
}

}  // namespace torchdion::engine
