#include "engine/step.h"

#include <ATen/Dispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <c10/core/DeviceGuard.h>

#include <algorithm>

#include "comm/sums.h"
#include "engine/checks.h"
#include "engine/elementwise_batches.h"
#include "engine/gradients.h"
#include "engine/traffic.h"
#include "engine/words.h"
#include "engine/zero_gradients.h"
#include "linalg/accumulate.h"
#include "linalg/backend.h"
#include "linalg/matrices.h"

namespace torchdion::engine {

namespace {

using algorithms::ElementwiseBatch;

// Tasks alive at a time where ranks communicate: one computes while the others wait. Elsewhere there is nothing to
// overlap.
constexpr int kWidth = 3;

constexpr int64_t kCacheLine = 64;  // bytes

void increment(const at::Tensor& step) {
  AT_DISPATCH_ALL_TYPES(step.scalar_type(), "torchdion::increment", [&] { *step.mutable_data_ptr<scalar_t>() += 1; });
}

// The kernels write behind autograd's back: a later backward() through a parameter must see that it has changed.
void bump_version(const at::Tensor& X) {
  if (!X.is_inference()) X.unsafeGetTensorImpl()->bump_version();
}

// In the user's orientation.
std::string description(const algorithms::DionBatch& batch) {
  if (batch.layout.is_local()) return {};
  const auto [smaller, larger] = std::minmax(batch.global_rows, batch.global_cols);
  const bool tall = batch.shape_factor > 1;
  return c10::str(batch.X.count(), batch.X.count() == 1 ? " matrix of " : " matrices of ", tall ? larger : smaller, "×",
                  tall ? smaller : larger, " under Dion");
}

void check_multiplier(const at::Tensor& number, const char* what) {
  if (!number.defined()) return;
  check_number(number, what);
  TORCH_CHECK_VALUE(at::isFloatingType(number.scalar_type()), prefix(), what,
                    " must be floating-point as a tensor on the device, got ", number.toString());
}

}  // namespace

Step::Step(Groups groups, Nonfinite nonfinite, GradientScaling scaling)
    : groups_(std::move(groups)), doubts_{nonfinite, scaling.found_inf}, scaling_(std::move(scaling)) {
  at::NoGradGuard no_grad;
  if (scaling_.scale.defined()) check_number(scaling_.scale, "grad_scale");
  if (scaling_.found_inf.defined()) check_number(scaling_.found_inf, "found_inf");
  groups_.for_each([&](auto& group) { check(group); });
  for (const DionGroup& group : groups_.dion) check_storage(group.X, group.Q, "state Q");
  for (const AdamWGroup& group : groups_.adamw) check_storage(group.X, group.V, "state variance");
  groups_.for_each([&](auto& group) {
    for (const at::Tensor& X : group.X) on(X.device());
  });
  check_capture();
  for (DionGroup& group : groups_.dion) {
    if (group.skip_zero_gradients) allocate_unchanged(group);
  }
  groups_.for_each([&](auto& group) { materialize(group.G), plan(group); });
  groups_.for_each([&](auto& group) { add_axes(group.layouts); });
  for (DeviceTasks& tasks : tasks_) allocate(tasks);
}

template <class Group>
void Step::check(const Group& group) const {
  check_parameters(group.X);
  check_storage(group.X, group.G, "gradient");
  check_storage(group.X, group.M, "state momentum");
  if (groups_.capturable) {
    TORCH_CHECK_VALUE(doubts_.nonfinite != Nonfinite::raise, prefix(), words().raise, " cannot be combined with ",
                      words().capturable, ": the host would wait");
    check_steps_on_devices(group.X, group.steps);
    check_multiplier(group.multipliers.lr, "lr");
    check_multiplier(group.multipliers.weight_decay, "weight_decay");
  } else {
    check_steps(group.X, group.steps);
  }
}

Step::DeviceTasks& Step::on(c10::Device device) {
  for (DeviceTasks& tasks : tasks_) {
    if (tasks.device == device) return tasks;
  }
  const at::TensorOptions options = at::TensorOptions(at::kFloat).device(device);
  tasks_.push_back({device, {}, {}, {}, {}});
  DeviceTasks& tasks = tasks_.back();
  if (doubts_.nonfinite == Nonfinite::zero) tasks.zeroed = at::zeros({1}, options.dtype(at::kLong));
  if (groups_.capturable && doubts_.exist()) tasks.left_out = at::empty({1}, options);
  if (scaling_.scale.defined()) tasks.divisor = scaling_.scale.to(options, /*non_blocking=*/device.is_cuda());
  return tasks;
}

// What no graph captures would be done at once, and not again when it is replayed.
void Step::check_capture() const {
  const auto is_captured = [](const DeviceTasks& tasks) {
    return linalg::backend_of(tasks.device).is_capturing(tasks.device);
  };
  const auto captured = std::find_if(tasks_.begin(), tasks_.end(), is_captured);
  if (captured == tasks_.end()) return;
  TORCH_CHECK_VALUE(groups_.capturable, prefix(), "a step that a CUDA graph captures needs ", words().capturable);
  const auto other = std::find_if_not(tasks_.begin(), tasks_.end(), is_captured);
  TORCH_CHECK_VALUE(other == tasks_.end(), prefix(), "a graph that captures a step must do so on the devices of ",
                    "all parameters, got ", captured->device, " and not ", other->device);
}

linalg::GradientRule Step::rule_on(c10::Device device) {
  const DeviceTasks& tasks = on(device);
  linalg::GradientRule rule;
  if (tasks.zeroed.defined()) rule.zeroed = tasks.zeroed.mutable_data_ptr<int64_t>();
  if (tasks.left_out.defined()) rule.left_out = tasks.left_out.const_data_ptr<float>();
  if (tasks.divisor.defined()) rule.divisor = tasks.divisor.const_data_ptr<float>();
  return rule;
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
  for (algorithms::DionBatch& batch : dion_batches(group, groups_.capturable, copies_)) {
    batch.gradients = rule_on(batch.X.device);
    at::Tensor& signal = on(batch.X.device).signal;
    if (!signal.defined()) signal = at::zeros({2}, at::TensorOptions(at::kLong).device(batch.X.device));
    batch.counts = {signal.mutable_data_ptr<int64_t>(), signal.mutable_data_ptr<int64_t>() + 1};
    batch.multipliers = group.multipliers.on(batch.X.device);
    const int64_t workspace = algorithms::dion_workspace(batch);
    const at::ScalarType dtype = linalg::compute_dtype({batch.X.dtype, batch.M.dtype, batch.Q.dtype});
    std::string what = description(batch);
    batch.dealt = deal(batch);
    expect(batch, group.hyper, dtype);
    auto make = [batch = std::move(batch), hyper = group.hyper](at::Tensor elements) mutable {
      batch.workspace = std::move(elements);
      return algorithms::dion(batch, hyper);
    };
    on(batch.X.device).tasks.push_back({std::move(make), workspace, dtype, std::move(what)});
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

template <class Hyperparameters>
void Step::plan(std::vector<ElementwiseBatch> batches, const Hyperparameters& hyper, const char* name,
                comm::Task<> (*update)(ElementwiseBatch, Hyperparameters)) {
  for (ElementwiseBatch& batch : batches) {
    DeviceTasks& place = on(batch.lists.X.front().device());
    std::string what = c10::str(batch.lists.X.size(), " parameters under ", name);
    if (!batch.replicas.absent()) expected_traffic_[batch.replicas.name()] += batch.mean.numel();
    auto make = [batch = std::move(batch), hyper, update](at::Tensor) { return update(batch, hyper); };
    place.tasks.push_back({std::move(make), 0, at::kFloat, std::move(what)});
  }
}

void Step::plan(const LionGroup& group) {
  const auto rule = [&](c10::Device device) { return rule_on(device); };
  plan(lion_batches(group, rule, copies_), group.hyper, "Lion", algorithms::lion);
}

void Step::plan(const AdamWGroup& group) {
  const auto rule = [&](c10::Device device) { return rule_on(device); };
  plan(adamw_batches(group, groups_.capturable, rule, copies_), group.hyper, "AdamW", algorithms::adamw);
}

void Step::add_axes(const std::vector<Layout>& layouts) {
  for (const Layout& layout : layouts) {
    for (const Axis* axis : {&layout.rows, &layout.cols, &layout.replicas, &layout.batch}) {
      const auto is_known = [&](const Axis& known) { return known.line == axis->line; };
      if (!axis->absent() && std::none_of(axes_.begin(), axes_.end(), is_known)) axes_.push_back(*axis);
    }
  }
}

// Where a graph may capture the step, the devices decide, and the tasks look at what they have decided.
bool Step::is_left_out(Report& report) {
  if (!doubts_.exist() || tasks_.empty()) return false;
  std::vector<at::Tensor> gradients;
  groups_.for_each([&](auto& group) { gradients.insert(gradients.end(), group.G.begin(), group.G.end()); });
  if (groups_.capturable) {
    std::vector<at::Tensor> left_out;
    for (const DeviceTasks& tasks : tasks_) left_out.push_back(tasks.left_out);
    for (const at::Tensor& found : decide_on_devices(doubts_, gradients, axes_, left_out)) report.nonfinite.add(found);
    report.left_out = left_out.front();
    return false;
  }
  const Verdict decided = verdict(doubts_, gradients, axes_);
  report.nonfinite.known = decided.nonfinite;
  return decided.left_out;
}

void Step::leave_zero_gradients_out() {
  find_unchanged(groups_.dion, axes_, doubts_.nonfinite == Nonfinite::zero);
  for (const DeviceTasks& tasks : tasks_) {
    if (tasks.left_out.defined()) leave_unchanged(groups_.dion, tasks.left_out);
  }
}

Report Step::run() {
  at::NoGradGuard no_grad;
  Report report;
  report.batches = static_cast<int64_t>(planned_);
  for (const DeviceTasks& tasks : tasks_) report.workspace_bytes += tasks.workspace.numel();
  report.skipped = is_left_out(report);
  if (report.skipped) return report;
  report.expected_traffic = expected_traffic_;

  leave_zero_gradients_out();
  wrote_ = true;
  for (DeviceTasks& tasks : tasks_) run_tasks(tasks);
  finish();
  for (const DeviceTasks& tasks : tasks_) {
    if (tasks.signal.defined()) {
      // P is zero in a step that is left out.
      if (tasks.left_out.defined()) tasks.signal.masked_fill_(tasks.left_out.ne(0), 0);
      report.without_signal.add(tasks.signal.narrow(0, 0, 1));
      report.in_margin.add(tasks.signal.narrow(0, 1, 1));
    }
    if (tasks.zeroed.defined()) report.nonfinite.add(tasks.zeroed);
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
  groups_.for_each([&](auto& group) {
    std::for_each(group.X.begin(), group.X.end(), bump_version);
    if (!groups_.capturable) std::for_each(group.steps.begin(), group.steps.end(), increment);
  });
  if (!groups_.capturable) return;
  for (const DeviceTasks& tasks : tasks_) increment_on(tasks);
}

// At once for all parameters of the device.
void Step::increment_on(const DeviceTasks& tasks) {
  const c10::DeviceGuard guard(tasks.device);
  std::vector<at::Tensor> steps;
  groups_.for_each([&](auto& group) {
    for (const at::Tensor& step : group.steps) {
      if (step.device() == tasks.device) steps.push_back(step.view({1, 1}));
    }
  });
  const std::vector<at::Tensor> ones(steps.size(), at::ones({1, 1}, steps.front().options()));
  linalg::GradientRule rule;
  if (tasks.left_out.defined()) rule.left_out = tasks.left_out.const_data_ptr<float>();
  linalg::accumulate_(linalg::Matrices(steps), linalg::Matrices(ones), rule);
}

}  // namespace torchdion::engine
