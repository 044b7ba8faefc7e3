// Whether the plan of the last step is that of the next one.
#include <ATen/Parallel.h>

#include <algorithm>

#include "engine/plan.h"
#include "linalg/memory.h"

namespace torchdion::engine {

namespace {

// Whether they are made of the same objects: parameters of one line are planned together.
bool is_same_object(const Layout& a, const Layout& b) {
  return a.rows.line == b.rows.line && a.cols.line == b.cols.line && a.replicas.line == b.replicas.line &&
         a.copies.line == b.copies.line && a.batch.line == b.batch.line && a.sizes == b.sizes &&
         a.has_averaged_copies == b.has_averaged_copies;
}

// Calls f(tensor) for parameters, gradients and states, in one order.
template <class F>
bool all_of_tensors(const Groups& groups, const F& f) {
  const auto all_of = [&](const std::vector<at::Tensor>& tensors) { return std::ranges::all_of(tensors, f); };
  return std::ranges::all_of(groups.all, [&](const Group& group) {
    return all_of(group.X) && all_of(group.G) && std::ranges::all_of(group.states, all_of) && all_of(group.steps);
  });
}

// What checks and plans look at: dispatch keys say which subclasses and views of numbers a tensor may be.
template <class F>
bool all_of_kind(const at::Tensor& tensor, const F& f) {
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  return f(static_cast<int64_t>(impl.key_set().raw_repr())) && f(static_cast<int64_t>(tensor.scalar_type())) &&
         f(static_cast<int64_t>(tensor.device().index())) && f(tensor.dim()) &&
         std::ranges::all_of(tensor.sizes(), f) && std::ranges::all_of(tensor.strides(), f);
}

}  // namespace

void KnownPlan::know(const Groups& groups, std::shared_ptr<Plan> plan) {
  plan_ = nullptr;
  groups_.clear();
  kinds_.clear();
  for (const Group& group : groups.all) {
    if (!group.shares.empty()) return;  // buckets hold tensors
    groups_.push_back({group.algorithm, group.options, group.layouts, group.whole_factors});
  }
  all_of_tensors(groups, [&](const at::Tensor& tensor) {
    return all_of_kind(tensor, [&](int64_t number) {
      kinds_.push_back(number);
      return true;
    });
  });
  capturable_ = groups.capturable;
  threads_ = at::get_num_threads();
  plan_ = std::move(plan);
}

std::shared_ptr<const Plan> KnownPlan::plan_of(const Groups& groups) {
  if (!plan_ || groups.capturable != capturable_ || at::get_num_threads() != threads_) return nullptr;
  const auto is_same_group = [](const Group& group, const KnownGroup& known) {
    if (group.algorithm != known.algorithm || group.whole_factors != known.whole_factors || !group.shares.empty()) {
      return false;
    }
    return differ_in_rates_at_most(group.options, known.options) &&
           std::ranges::equal(group.layouts, known.layouts, is_same_object);
  };
  if (!std::ranges::equal(groups.all, groups_, is_same_group)) return nullptr;
  auto kind = kinds_.begin();
  const bool are_alike = all_of_tensors(groups, [&](const at::Tensor& tensor) {
    const auto is_next = [&](int64_t number) { return kind != kinds_.end() && *kind++ == number; };
    return all_of_kind(tensor, is_next) && linalg::has_memory(tensor);
  });
  return are_alike && kind == kinds_.end() && take_classes_of_steps(groups) ? plan_ : nullptr;
}

// Batches hold parameters whose steps have the same class, which may be another one now for all of them.
bool KnownPlan::take_classes_of_steps(const Groups& groups) {
  std::vector<int64_t> classes;
  for (const Alike& alike : plan_->alike) {
    const Group& group = groups.all[alike.group];
    const auto class_of_step = group.algorithm->class_of_step;
    int64_t now = alike.step;
    for (const std::size_t i : alike.members) {
      if (alike.step == 0) break;
      const int64_t own = class_of_step(steps_taken(group.steps[i]) + 1, group.options);
      if (i != alike.members.front() && own != now) return false;
      now = own;
    }
    classes.push_back(now);
  }
  for (std::size_t i = 0; i < classes.size(); ++i) {  // alike ones of a group must not become one, nor part
    for (std::size_t k = 0; k < i; ++k) {
      if (plan_->alike[i].group != plan_->alike[k].group) continue;
      if ((classes[i] == classes[k]) != (plan_->alike[i].step == plan_->alike[k].step)) return false;
    }
  }
  for (std::size_t i = 0; i < classes.size(); ++i) plan_->alike[i].step = classes[i];
  return true;
}

}  // namespace torchdion::engine
