#include "engine/step.h"

#include <ATen/Dispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <c10/core/DeviceGuard.h>

#include <algorithm>

#include "comm/sums.h"
#include "engine/checks.h"
#include "engine/gradients.h"
#include "engine/shapes.h"
#include "engine/traffic.h"
#include "linalg/matrices.h"

namespace torchdion::engine {

namespace {

using algorithms::ElementwiseBatch;

// Tasks alive at a time where ranks communicate: one computes while the others wait. Elsewhere there is nothing to
// overlap.
constexpr int kWidth = 3;

constexpr int64_t kCacheLine = 64;  // bytes

// The members of a group that one task updates: those on one device, with the same replicas to average with and, where
// there are any, the same computing dtype.
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

void increment(const at::Tensor& step) {
  AT_DISPATCH_ALL_TYPES(step.scalar_type(), "torchdion::increment", [&] { *step.mutable_data_ptr<scalar_t>() += 1; });
}

// The kernels write behind autograd's back: a later backward() through a parameter must see that it has changed.
void bump_version(const at::Tensor& X) {
  if (!X.is_inference()) X.unsafeGetTensorImpl()->bump_version();
}

double number_in(const at::Tensor& tensor, const char* what) {
  TORCH_CHECK_VALUE(tensor.numel() == 1 && tensor.layout() == at::kStrided && !tensor.is_complex(),
                    "torchdion.Dion: ", what, " must be a tensor of one real number, got ", tensor.toString(),
                    " of shape ", tensor.sizes());
  return tensor.item<double>();
}

std::vector<int64_t> numels(const std::vector<at::Tensor>& tensors) {
  std::vector<int64_t> all;
  for (const at::Tensor& tensor : tensors) all.push_back(tensor.numel());
  return all;
}

// In the user's orientation.
std::string description(const algorithms::DionBatch& batch) {
  if (batch.layout.is_local()) return {};
  const auto [smaller, larger] = std::minmax(batch.global_rows, batch.global_cols);
  const bool tall = batch.shape_factor > 1;
  return c10::str(batch.X.count(), batch.X.count() == 1 ? " matrix of " : " matrices of ", tall ? larger : smaller, "×",
                  tall ? smaller : larger, " under Dion");
}

template <class Group>
void check_tensors(const std::vector<Group>& groups) {
  for (const Group& group : groups) {
    check_parameters(group.X);
    check_storage(group.G, "gradient");
    check_storage(group.M, "state momentum");
    check_steps(group.steps);
  }
}

}  // namespace

Step::Step(Groups groups, Nonfinite nonfinite, GradientScaling scaling)
    : groups_(std::move(groups)), nonfinite_(nonfinite) {
  at::NoGradGuard no_grad;
  if (scaling.scale.defined()) gradient_factor_ = 1 / number_in(scaling.scale, "grad_scale");
  has_found_inf_ = scaling.found_inf.defined();
  if (has_found_inf_) found_inf_ = number_in(scaling.found_inf, "found_inf");
  check_tensors(groups_.dion);
  check_tensors(groups_.lion);
  check_tensors(groups_.adamw);
  for (const DionGroup& group : groups_.dion) check_storage(group.Q, "state Q");
  for (const AdamWGroup& group : groups_.adamw) check_storage(group.V, "state variance");
  for (DionGroup& group : groups_.dion) materialize(group.G), plan(group);
  for (LionGroup& group : groups_.lion) materialize(group.G), plan(group);
  for (AdamWGroup& group : groups_.adamw) materialize(group.G), plan(group);
  add_axes(groups_.dion);
  add_axes(groups_.lion);
  add_axes(groups_.adamw);
  for (DeviceTasks& tasks : tasks_) allocate(tasks);
}

Step::DeviceTasks& Step::on(c10::Device device) {
  for (DeviceTasks& tasks : tasks_) {
    if (tasks.device == device) return tasks;
  }
  tasks_.push_back({device, {}, {}, {}});
  if (nonfinite_ == Nonfinite::zero) tasks_.back().zeroed = at::zeros({1}, at::TensorOptions(at::kLong).device(device));
  return tasks_.back();
}

void Step::allocate(DeviceTasks& tasks) {
  int64_t bytes = 0;
  for (const PlannedTask& task : tasks.tasks) {
    bytes = std::max(bytes, task.workspace * static_cast<int64_t>(c10::elementSize(task.dtype)));
  }
  // A product's last bits may depend on where its operands begin in a cache line: every slot begins one, so that copies
  // of a matrix stay equal on ranks whose other matrices need workspaces of other sizes.
  if (!axes_.empty()) bytes = (bytes + kCacheLine - 1) / kCacheLine * kCacheLine;
  tasks.workspace = at::empty({axes_.empty() ? 1 : kWidth, bytes}, at::TensorOptions(at::kByte).device(tasks.device));
  planned_ += tasks.tasks.size();
}

void Step::plan(const DionGroup& group) {
  for (algorithms::DionBatch& batch : dion_batches(group, copies_)) {
    DeviceTasks& place = on(batch.X.device);
    batch.gradient_factor = gradient_factor_;
    batch.zeroed = place.counter();
    const int64_t workspace = algorithms::dion_workspace(batch);
    const at::ScalarType dtype = linalg::compute_dtype({batch.X.dtype, batch.M.dtype, batch.Q.dtype});
    std::string what = description(batch);
    batch.dealt = deal(batch);
    expect(batch, group.hyper, dtype);
    auto make = [batch = std::move(batch), hyper = group.hyper](at::Tensor elements) mutable {
      batch.workspace = std::move(elements);
      return algorithms::dion(batch, hyper);
    };
    place.tasks.push_back({std::move(make), workspace, dtype, std::move(what)});
  }
}

// An axis has the same batches in the same order on all its ranks, and so the same count.
algorithms::Dealt Step::deal(const algorithms::DionBatch& batch) {
  const Axis &cols = batch.layout.cols, &replicas = batch.layout.replicas;
  if (!batch.layout.rows.absent()) return {};
  const algorithms::Dealt before{dealt_[cols.line.get()], dealt_[replicas.line.get()]};
  dealt_[cols.line.get()] += batch.X.count();
  if (batch.compressed) {
    dealt_[replicas.line.get()] += comm::share_of(batch.X.count(), cols.rank, cols.size, before.cols);
  }
  return before;
}

void Step::expect(const algorithms::DionBatch& batch, const DionHyperparameters& hyper, at::ScalarType dtype) {
  const Layout& layout = batch.layout;
  if (layout.is_local()) return;
  const MatrixTraffic sent = traffic({batch.X.count(), batch.global_rows, batch.global_cols, batch.r,
                                      hyper.orthonormalize, hyper.rcqr_oversample, dtype, batch.dealt.cols},
                                     layout, batch.compressed);
  if (!layout.rows.absent()) expected_traffic_[layout.rows.name()] += sent.rows;
  if (!layout.cols.absent()) expected_traffic_[layout.cols.name()] += sent.cols;
  if (!layout.replicas.absent()) expected_traffic_[layout.replicas.name()] += sent.replicas;
}

template <class Group>
ElementwiseBatch Step::elementwise(const Group& group, const std::vector<std::size_t>& members) {
  ElementwiseBatch batch;
  int64_t numel = 0;
  for (const std::size_t i : members) {
    const at::Tensor& X = group.X[i];
    check_gradient(X, group.G[i]);
    check_elementwise_state(X, group.M[i], "state momentum");
    batch.lists.X.push_back(copies_.writable(X));
    batch.lists.G.push_back(group.G[i].contiguous());
    batch.lists.M.push_back(group.M[i]);
    numel += X.numel();
  }
  batch.lists.gradient_factor = gradient_factor_;
  const c10::Device device = batch.lists.X.front().device();
  batch.lists.zeroed = on(device).counter();
  batch.replicas = layout_of(group.layouts, members.front()).replicas;
  if (batch.replicas.absent()) return batch;
  expected_traffic_[batch.replicas.name()] += numel;
  batch.own.swap(batch.lists.G);
  batch.mean = at::zeros(
      {numel}, at::TensorOptions(linalg::compute_dtype({batch.lists.X.front().scalar_type()})).device(device));
  for (const at::Tensor& view : batch.mean.split_with_sizes(numels(batch.lists.X))) batch.lists.G.push_back(view);
  return batch;
}

void Step::plan(const LionGroup& group) {
  for (const std::vector<std::size_t>& members : tasks_of(group)) {
    auto make = [batch = elementwise(group, members), hyper = group.hyper](at::Tensor) {
      return algorithms::lion(batch, hyper);
    };
    on(group.X[members.front()].device())
        .tasks.push_back({std::move(make), 0, at::kFloat, c10::str(members.size(), " parameters under Lion")});
  }
}

void Step::plan(const AdamWGroup& group) {
  for (const std::vector<std::size_t>& members : tasks_of(group)) {
    ElementwiseBatch batch = elementwise(group, members);
    for (const std::size_t i : members) {
      check_elementwise_state(group.X[i], group.V[i], "state variance");
      batch.lists.V.push_back(group.V[i]);
      batch.lists.step.push_back(group.steps[i].item<int64_t>() + 1);
    }
    auto make = [batch = std::move(batch), hyper = group.hyper](at::Tensor) { return algorithms::adamw(batch, hyper); };
    on(group.X[members.front()].device())
        .tasks.push_back({std::move(make), 0, at::kFloat, c10::str(members.size(), " parameters under AdamW")});
  }
}

template <class Group>
void Step::add_axes(const std::vector<Group>& groups) {
  for (const Group& group : groups) {
    for (const Layout& layout : group.layouts) {
      for (const Axis* axis : {&layout.rows, &layout.cols, &layout.replicas, &layout.batch}) {
        const auto is_known = [&](const Axis& known) { return known.line == axis->line; };
        if (!axis->absent() && std::none_of(axes_.begin(), axes_.end(), is_known)) axes_.push_back(*axis);
      }
    }
  }
}

int64_t Step::count_nonfinite() const {
  int64_t found = 0;
  for (const DionGroup& group : groups_.dion) found += count_nonfinite_in(group.G);
  for (const LionGroup& group : groups_.lion) found += count_nonfinite_in(group.G);
  for (const AdamWGroup& group : groups_.adamw) found += count_nonfinite_in(group.G);
  return found;
}

// Every rank decides alike.
bool Step::is_left_out(Report& report) const {
  if (has_found_inf_ && comm::largest_of_ranks(found_inf_, axes_) != 0) return true;
  if (nonfinite_ != Nonfinite::raise && nonfinite_ != Nonfinite::skip_step) return false;
  report.nonfinite = count_nonfinite();
  if (comm::largest_of_ranks(static_cast<double>(report.nonfinite), axes_) == 0) return false;
  TORCH_CHECK_VALUE(nonfinite_ == Nonfinite::skip_step,
                    "torchdion.Dion: ", report.nonfinite > 0 ? std::to_string(report.nonfinite) : "another rank's",
                    " gradient entries are NaN or infinite (nonfinite='raise')");
  return true;
}

Report Step::run() {
  at::NoGradGuard no_grad;
  Report report;
  report.batches = static_cast<int64_t>(planned_);
  for (const DeviceTasks& tasks : tasks_) report.workspace_bytes += tasks.workspace.numel();
  report.skipped = is_left_out(report);
  if (report.skipped) return report;
  report.expected_traffic = expected_traffic_;

  wrote_ = true;
  for (DeviceTasks& tasks : tasks_) run_tasks(tasks);
  finish();
  for (const DeviceTasks& tasks : tasks_) {
    if (!tasks.zeroed.defined()) continue;
    if (tasks.device.is_cpu()) {
      report.nonfinite += tasks.zeroed.item<int64_t>();
    } else {
      report.nonfinite_on_devices.push_back(tasks.zeroed);
    }
  }
  return report;
}

void Step::run_tasks(DeviceTasks& tasks) {
  const c10::DeviceGuard guard(tasks.device);
  std::vector<comm::Scheduler::Factory> factories;
  for (PlannedTask& task : tasks.tasks) {
    factories.push_back([&tasks, &task](int slot) {
      const int64_t bytes = task.workspace * static_cast<int64_t>(c10::elementSize(task.dtype));
      return task.make(tasks.workspace[slot].narrow(0, 0, bytes).view(task.dtype));
    });
  }
  const std::size_t before = completed_;
  comm::Scheduler scheduler(axes_.empty() ? 1 : kWidth);
  try {
    scheduler.run(factories);
    completed_ = before + scheduler.completed();
  } catch (const c10::DistBackendError& error) {
    completed_ = before + scheduler.completed();
    const std::size_t failed = scheduler.failed();
    C10_THROW_ERROR(DistBackendError, c10::str(error.msg(), " (in batch ", before + failed + 1, " of ", planned_, ", ",
                                               tasks.tasks[failed].what, ")"));
  } catch (...) {
    completed_ = before + scheduler.completed();
    throw;
  }
}

void Step::finish() {
  copies_.write_back();
  for (const DionGroup& group : groups_.dion) {
    std::for_each(group.X.begin(), group.X.end(), bump_version);
    std::for_each(group.steps.begin(), group.steps.end(), increment);
  }
  for (const LionGroup& group : groups_.lion) {
    std::for_each(group.X.begin(), group.X.end(), bump_version);
    std::for_each(group.steps.begin(), group.steps.end(), increment);
  }
  for (const AdamWGroup& group : groups_.adamw) {
    std::for_each(group.X.begin(), group.X.end(), bump_version);
    std::for_each(group.steps.begin(), group.steps.end(), increment);
  }
}

}  // namespace torchdion::engine
