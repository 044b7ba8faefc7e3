#include "engine/batches.h"

#include <ATen/ops/zeros.h>

#include "engine/shapes.h"

namespace torchdion::engine {

using algorithms::Batch;
using algorithms::StateShape;
using linalg::Matrices;

namespace {

// A lazy copy becomes a copy: kernels that work in parallel may not make one.
const at::Tensor& in_memory(const at::Tensor& tensor) {
  if (tensor.numel() > 0) (void)tensor.mutable_data_ptr();
  return tensor;
}

at::Tensor matrices_of(const at::Tensor& state, const algorithms::State& declared, MatrixForm form) {
  if (declared.shape == StateShape::factor) return state;
  form.fan_in_first = form.fan_in_first && declared.shape == StateShape::like_parameter;
  return *matrix_view(state, form);
}

// Appends to the matrices of other parameters that lie alike.
void append(Matrices& matrices, const at::Tensor& stack) {
  if (matrices.data.empty() && matrices.rows == 0) {
    matrices = Matrices(stack);
  } else {
    matrices.append(stack);
  }
}

void add_matrices(Batch& batch, const Group& group, std::size_t i, Copies& copies) {
  const MatrixForm form = form_of(group.options);
  const at::Tensor &X = group.X[i], &G = group.G[i];
  const bool cut = !layout_of(group.layouts, i).is_local();
  const bool copies_X = strides_of_written(X, form, cut).of_copy, copies_G = strides_of_read(G, form, cut).of_copy;
  append(batch.X, *matrix_view(copies_X ? copies.writable(X) : X, form));
  append(batch.G, *matrix_view(copies_G ? copies.readable(G) : G, form));
  batch.states.resize(group.states.size());
  for (std::size_t k = 0; k < group.states.size(); ++k) {
    append(batch.states[k], matrices_of(group.states[k][i], group.algorithm->states[k], form));
  }
  if (!group.unchanged.empty() && group.unchanged[i].numel() > 0) {  // split() gives one piece of nothing
    for (const at::Tensor& number : group.unchanged[i].split(1)) batch.marks.push_back(number);
  }
}

// Of all matrices that are alike.
Batch matrices_of(const Alike& alike, const Groups& groups, Copies& copies) {
  const Group& group = groups.all[alike.group];
  Batch batch;
  for (const std::size_t i : alike.members) add_matrices(batch, group, i, copies);
  batch.factors.shape_factor = alike.shape_factor;
  batch.step = alike.step;
  if (groups.capturable) batch.steps_before = group.steps[alike.members.front()].const_data_ptr<float>();
  const Layout& layout = alike.layout;
  const bool has_copies = layout.has_averaged_copies || !layout.replicas.absent() || !layout.copies.absent();
  batch.order = has_copies ? comm::Order::fixed : comm::Order::any;
  if (!alike.transposed) return batch;
  batch.X = batch.X.t();
  batch.G = batch.G.t();
  for (std::size_t k = 0; k < batch.states.size(); ++k) {
    if (group.algorithm->states[k].shape != StateShape::factor) batch.states[k] = batch.states[k].t();
  }
  return batch;
}

Batch slice(const Batch& whole, int64_t begin, int64_t end) {
  Batch part = whole;
  part.X = whole.X.slice(begin, end);
  part.G = whole.G.slice(begin, end);
  for (std::size_t k = 0; k < whole.states.size(); ++k) part.states[k] = whole.states[k].slice(begin, end);
  if (!whole.marks.empty()) part.marks.assign(whole.marks.begin() + begin, whole.marks.begin() + end);
  return part;
}

Batch list_of(const Alike& alike, const Groups& groups, Copies& copies) {
  const Group& group = groups.all[alike.group];
  Batch batch;
  batch.lists.states.resize(group.states.size());
  std::vector<int64_t> numels;
  for (const std::size_t i : alike.members) {
    numels.push_back(group.X[i].numel());
    batch.lists.X.push_back(in_memory(copies.writable(group.X[i])));
    batch.lists.G.push_back(in_memory(group.G[i].contiguous()));
    for (std::size_t k = 0; k < group.states.size(); ++k) {
      batch.lists.states[k].push_back(in_memory(group.states[k][i]));
    }
    if (groups.capturable) {
      batch.lists.device_step.push_back(group.steps[i].const_data_ptr<float>());
    } else {
      batch.lists.step.push_back(steps_taken(group.steps[i]) + 1);
    }
  }
  if (alike.layout.replicas.absent()) return batch;
  const at::Tensor& first = batch.lists.X.front();
  batch.own.swap(batch.lists.G);
  batch.mean = at::zeros({alike.shape.numel}, first.options().dtype(linalg::compute_dtype({first.scalar_type()})));
  for (const at::Tensor& view : batch.mean.split_with_sizes(numels)) batch.lists.G.push_back(view);
  return batch;
}

}  // namespace

at::Tensor Copies::writable(const at::Tensor& tensor) {
  if (tensor.is_contiguous() && !tensor.is_neg()) return tensor;
  written_.emplace_back(tensor, tensor.resolve_neg().contiguous());
  return written_.back().second;
}

at::Tensor Copies::readable(const at::Tensor& tensor) {
  read_.push_back(tensor.contiguous());
  return read_.back();
}

void Copies::write_back() const {
  for (const auto& [target, copy] : written_) target.copy_(copy);
}

std::vector<Batch> batches_of(const Plan& plan, const Groups& groups, Copies& copies) {
  std::vector<Batch> wholes;
  for (const Alike& alike : plan.alike) {
    const bool matrices = groups.all[alike.group].takes_matrices();
    wholes.push_back(matrices ? matrices_of(alike, groups, copies) : list_of(alike, groups, copies));
  }
  std::vector<Batch> batches;
  for (const PlannedBatch& planned : plan.batches) {
    const Alike& alike = plan.alike[planned.alike];
    const Group& group = groups.all[alike.group];
    const bool is_whole = planned.begin == 0 && planned.end == alike.shape.count;
    const Batch& whole = wholes[planned.alike];
    batches.push_back(is_whole ? whole : slice(whole, planned.begin, planned.end));
    Batch& batch = batches.back();
    batch.shape = planned.shape;
    batch.layout = alike.layout;
    batch.factors.multipliers = group.multipliers.on(group.X[alike.members.front()].device());
  }
  return batches;
}

}  // namespace torchdion::engine
