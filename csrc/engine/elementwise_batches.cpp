#include "engine/elementwise_batches.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <tuple>

#include "engine/checks.h"
#include "engine/shapes.h"
#include "linalg/matrices.h"

namespace torchdion::engine {

namespace {

using algorithms::ElementwiseBatch;

// The members of a group that one task updates.
template <class Group>
std::vector<std::vector<std::size_t>> tasks_of(const Group& group) {
  std::vector<std::vector<std::size_t>> tasks;
  std::vector<std::tuple<c10::Device, const void*, at::ScalarType>> keys;
  for (std::size_t i = 0; i < group.X.size(); ++i) {
    const Axis& replicas = layout_of(group.layouts, i).replicas;
    const at::ScalarType dtype = replicas.absent() ? at::kFloat : linalg::compute_dtype({group.X[i].scalar_type()});
    const std::tuple<c10::Device, const void*, at::ScalarType> key{group.X[i].device(), replicas.line.get(), dtype};
    const auto place = std::find(keys.begin(), keys.end(), key) - keys.begin();
    if (place == static_cast<std::ptrdiff_t>(keys.size())) {
      keys.push_back(key);
      tasks.emplace_back();
    }
    tasks[place].push_back(i);
  }
  return tasks;
}

std::vector<int64_t> numels(const std::vector<at::Tensor>& tensors) {
  std::vector<int64_t> all;
  for (const at::Tensor& tensor : tensors) all.push_back(tensor.numel());
  return all;
}

// A lazy copy becomes a copy: kernels that work in parallel may not make one.
const at::Tensor& in_memory(const at::Tensor& tensor) {
  if (tensor.numel() > 0) (void)tensor.mutable_data_ptr();
  return tensor;
}

template <class Group>
ElementwiseBatch batch_of(const Group& group, const std::vector<std::size_t>& members, const RuleOn& rule_on,
                          Copies& copies) {
  ElementwiseBatch batch;
  int64_t numel = 0;
  for (const std::size_t i : members) {
    const at::Tensor& X = group.X[i];
    check_gradient(X, group.G[i]);
    check_elementwise_state(X, group.M[i], "state momentum");
    batch.lists.X.push_back(in_memory(copies.writable(X)));
    batch.lists.G.push_back(in_memory(group.G[i].contiguous()));
    batch.lists.M.push_back(in_memory(group.M[i]));
    numel += X.numel();
  }
  const c10::Device device = batch.lists.X.front().device();
  batch.lists.rule = rule_on(device);
  batch.lists.multipliers = group.multipliers.on(device);
  batch.replicas = layout_of(group.layouts, members.front()).replicas;
  if (batch.replicas.absent()) return batch;
  batch.own.swap(batch.lists.G);
  batch.mean = at::zeros(
      {numel}, at::TensorOptions(linalg::compute_dtype({batch.lists.X.front().scalar_type()})).device(device));
  for (const at::Tensor& view : batch.mean.split_with_sizes(numels(batch.lists.X))) batch.lists.G.push_back(view);
  return batch;
}

}  // namespace

std::vector<ElementwiseBatch> lion_batches(const LionGroup& group, const RuleOn& rule_on, Copies& copies) {
  std::vector<ElementwiseBatch> batches;
  for (const std::vector<std::size_t>& members : tasks_of(group)) {
    batches.push_back(batch_of(group, members, rule_on, copies));
  }
  return batches;
}

std::vector<ElementwiseBatch> adamw_batches(const AdamWGroup& group, bool capturable, const RuleOn& rule_on,
                                            Copies& copies) {
  std::vector<ElementwiseBatch> batches;
  for (const std::vector<std::size_t>& members : tasks_of(group)) {
    ElementwiseBatch batch = batch_of(group, members, rule_on, copies);
    for (const std::size_t i : members) {
      check_elementwise_state(group.X[i], group.V[i], "state variance");
      batch.lists.V.push_back(in_memory(group.V[i]));
      if (capturable) {
        batch.lists.device_step.push_back(group.steps[i].const_data_ptr<float>());
      } else {
        batch.lists.step.push_back(group.steps[i].item<int64_t>() + 1);
      }
    }
    batches.push_back(std::move(batch));
  }
  return batches;
}

}  // namespace torchdion::engine
