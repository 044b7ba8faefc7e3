#include "engine/known_plan.h"

#include <ATen/Parallel.h>

#include <algorithm>

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
  for (const Group& group : groups.all) {
    if (!std::all_of(group.X.begin(), group.X.end(), f) || !std::all_of(group.G.begin(), group.G.end(), f))
      return false;
    for (const std::vector<at::Tensor>& state : group.states) {
      if (!std::all_of(state.begin(), state.end(), f)) return false;
    }
    if (!std::all_of(group.steps.begin(), group.steps.end(), f)) return false;
  }
  return true;
}

// What checks and plans look at: dispatch keys say which subclasses and views of numbers a tensor may be.
template <class F>
bool all_of_kind(const at::Tensor& tensor, const F& f) {
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  if (!f(static_cast<int64_t>(impl.key_set().raw_repr())) || !f(static_cast<int64_t>(tensor.scalar_type())) ||
      !f(static_cast<int64_t>(tensor.device().index())) || !f(tensor.dim())) {
    return false;
  }
  const at::IntArrayRef sizes = tensor.sizes(), strides = tensor.strides();
  return std::all_of(sizes.begin(), sizes.end(), f) && std::all_of(strides.begin(), strides.end(), f);
}

// Rates decide nothing.
bool is_rate(std::string_view option) { return option == "lr" || option == "weight_decay"; }

}  // namespace

void KnownPlan::know(const Groups& groups, std::shared_ptr<Plan> plan) {
  plan_ = std::move(plan);
  groups_.clear();
  for (const Group& group : groups.all) {
    if (!group.shares.empty()) return forget();  // buckets hold tensors
    groups_.push_back({group.algorithm, group.options, group.layouts, group.whole_factors});
  }
  kinds_.clear();
  all_of_tensors(groups, [&](const at::Tensor& tensor) {
    return all_of_kind(tensor, [&](int64_t number) {
      kinds_.push_back(number);
      return true;
    });
  });
  capturable_ = groups.capturable;
  threads_ = at::get_num_threads();
}

std::shared_ptr<const Plan> KnownPlan::plan_of(const Groups& groups) {
  if (!plan_ || groups.all.size() != groups_.size() || groups.capturable != capturable_ ||
      at::get_num_threads() != threads_) {
    return nullptr;
  }
  const auto is_same_group = [](const Group& group, const KnownGroup& known) {
    if (group.algorithm != known.algorithm || group.layouts.size() != known.layouts.size() ||
        group.whole_factors != known.whole_factors || !group.shares.empty()) {
      return false;
    }
    const auto has_same = [&](const auto& option) {
      return is_rate(option.first) || known.options.at(option.first) == option.second;
    };
    return std::all_of(group.options.all().begin(), group.options.all().end(), has_same) &&
           std::equal(group.layouts.begin(), group.layouts.end(), known.layouts.begin(), is_same_object);
  };
  if (!std::equal(groups.all.begin(), groups.all.end(), groups_.begin(), is_same_group)) return nullptr;
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
