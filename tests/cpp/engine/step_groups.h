// Parameters for the tests of the step, with gradients and state, and whether one has changed them.
#pragma once

#include <gtest/gtest.h>

#include <limits>

#include "engine/groups.h"
#include "tensors.h"

namespace torchdion::engine {

struct DionParameter {
  std::vector<int64_t> sizes, q_sizes;
};

inline DionGroup dion_group(const std::vector<DionParameter>& parameters, MatrixForm form = {}) {
  DionGroup group;
  group.form = form;
  uint64_t seed = 0;
  for (const DionParameter& p : parameters) {
    group.X.push_back(normal(p.sizes, ++seed));
    group.G.push_back(normal(p.sizes, ++seed));
    group.M.push_back(normal(p.sizes, ++seed));
    group.Q.push_back(normal(p.q_sizes, ++seed));
    group.steps.push_back(at::zeros({}));
  }
  return group;
}

template <class Group>
Group elementwise_group(const std::vector<std::vector<int64_t>>& shapes) {
  Group group;
  uint64_t seed = 100;
  for (const std::vector<int64_t>& sizes : shapes) {
    group.X.push_back(normal(sizes, ++seed));
    group.G.push_back(normal(sizes, ++seed));
    group.M.push_back(at::zeros(sizes, at::kDouble));
    if constexpr (std::is_same_v<Group, AdamWGroup>) group.V.push_back(at::zeros(sizes, at::kDouble));
    group.steps.push_back(at::zeros({}));
  }
  return group;
}

// Every role that a parameter can have.
inline Groups all_groups() {
  Groups groups;
  groups.dion.push_back(dion_group({{{12, 20}, {12, 4}}, {{20, 12}, {12, 6}}, {{12, 20}, {12, 4}}, {{9, 9}, {9, 9}}}));
  groups.dion.push_back(dion_group({{{3, 8, 10}, {3, 8, 2}}}, {.batch_dims = 1}));
  groups.lion.push_back(elementwise_group<LionGroup>({{7}, {3, 4}, {}}));
  groups.adamw.push_back(elementwise_group<AdamWGroup>({{7}, {2000}}));
  return groups;
}

inline void put_two_nonfinite(Groups& groups) {
  groups.dion[0].G[0][3][4] = std::numeric_limits<double>::quiet_NaN();
  groups.adamw[0].G[1][7] = std::numeric_limits<double>::infinity();
}

inline std::vector<at::Tensor*> tensors_of(Groups& groups) {
  std::vector<at::Tensor*> all;
  const auto add = [&all](std::vector<at::Tensor>& list) {
    for (at::Tensor& tensor : list) all.push_back(&tensor);
  };
  for (DionGroup& g : groups.dion) add(g.X), add(g.G), add(g.M), add(g.Q), add(g.steps);
  for (LionGroup& g : groups.lion) add(g.X), add(g.G), add(g.M), add(g.steps);
  for (AdamWGroup& g : groups.adamw) add(g.X), add(g.G), add(g.M), add(g.V), add(g.steps);
  return all;
}

inline std::vector<at::Tensor> snapshot(Groups& groups) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor* tensor : tensors_of(groups)) copies.push_back(tensor->clone());
  return copies;
}

inline void expect_unchanged(Groups& groups, const std::vector<at::Tensor>& before) {
  const std::vector<at::Tensor*> now = tensors_of(groups);
  for (std::size_t i = 0; i < now.size(); ++i) EXPECT_TRUE(bitwise_equal(*now[i], before[i])) << "tensor " << i;
}

}  // namespace torchdion::engine
