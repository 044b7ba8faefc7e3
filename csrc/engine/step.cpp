#include "engine/step.h"

#include <ATen/Dispatch.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "engine/checks.h"
#include "engine/state.h"
#include "linalg/backend.h"
#include "words.h"

namespace torchdion::engine {

namespace {

void increment(const at::Tensor& step) {
  AT_DISPATCH_ALL_TYPES(step.scalar_type(), "torchdion::increment", [&] { *step.mutable_data_ptr<scalar_t>() += 1; });
}

// The kernels write behind autograd's back: a later backward() through a parameter must see that it has changed.
void bump_version(const at::Tensor& X) {
  if (!X.is_inference()) X.unsafeGetTensorImpl()->bump_version();
}

void check_multiplier(const at::Tensor& number, const char* what) {
  if (!number.defined()) return;
  check_number(number, what);
  TORCH_CHECK_VALUE(at::isFloatingType(number.scalar_type()), prefix(), what,
                    " must be floating-point as a tensor on the device, got ", number.toString());
}

}  // namespace

Step::Step(Groups groups, Nonfinite nonfinite, GradientScaling scaling, KnownPlan* known)
    : policy_{nonfinite, scaling.found_inf}, scaling_(std::move(scaling)) {
  at::NoGradGuard no_grad;
  if (scaling_.scale.defined()) check_number(scaling_.scale, "grad_scale");
  if (scaling_.found_inf.defined()) check_number(scaling_.found_inf, "found_inf");
  find_plan(std::move(groups), known);
  make_tasks();
}

void Step::find_plan(Groups groups, KnownPlan* known) {
  const auto allocate = [](Group& group) {
    if (group.takes_matrices() && group.options.flag("skip_zero_gradients")) allocate_unchanged(group);
  };
  if (known) plan_ = known->plan_of(groups);
  if (plan_) {
    for (Group& group : groups.all) {
      check_numbers(group, groups.capturable);
      allocate(group);
    }
    groups_ = SharedGroups(std::move(groups));
    return;
  }
  for (Group& group : groups.all) {
    check(group, groups.capturable);
    check_numbers(group, groups.capturable);
    materialize(group.G);
    check_gradients_and_states(group);
    allocate(group);
  }
  groups_ = SharedGroups(std::move(groups));
  const auto plan = std::make_shared<Plan>(plan_of(groups_));
  plan_ = plan;
  if (known) known->know(groups_.given(), plan);
}

void Step::check(const Group& group, bool capturable) const {
  check_parameters(group.X);
  check_storage(group.X, group.G, "gradient");
  for (std::size_t k = 0; k < group.states.size(); ++k) {
    check_storage(group.X, group.states[k], title_of(group.algorithm->states[k]));
  }
  TORCH_CHECK_VALUE(!capturable || policy_.nonfinite != Nonfinite::raise, prefix(), raising(),
                    " cannot be combined with ", captured(), ": the host would wait");
}

void Step::check_numbers(const Group& group, bool capturable) const {
  if (!capturable) return check_steps(group.X, group.steps);
  check_steps_on_devices(group.X, group.steps);
  check_multiplier(group.multipliers.lr, "lr");
  check_multiplier(group.multipliers.weight_decay, "weight_decay");
}

void Step::check_gradients_and_states(const Group& group) const {
  for (std::size_t i = 0; i < group.X.size(); ++i) {
    check_gradient(group.X[i], group.G[i]);
    for (std::size_t k = 0; k < group.states.size(); ++k) {
      check_state(group.X[i], group.states[k][i], title_of(group.algorithm->states[k]));
    }
  }
}

DeviceTasks& Step::tasks_on(c10::Device device) {
  for (DeviceTasks& tasks : devices_) {
    if (tasks.device() == device) return tasks;
  }
  return devices_.emplace_back(device, policy_, scaling_, groups_.given().capturable);
}

// A graph records what is done on its device, and does it again when it is replayed: a step that it captures must be
// there as a whole, and may have nothing done by the host.
void Step::check_capture() const {
  const auto is_captured = [](const DeviceTasks& tasks) {
    return linalg::backend_of(tasks.device()).is_capturing(tasks.device());
  };
  const auto on = std::find_if(devices_.begin(), devices_.end(), is_captured);
  if (on == devices_.end()) return;
  TORCH_CHECK_VALUE(groups_.given().capturable, prefix(), "a step that a CUDA graph captures needs ", captured());
  const auto other = std::find_if_not(devices_.begin(), devices_.end(), is_captured);
  TORCH_CHECK_VALUE(other == devices_.end(), prefix(), "a graph that captures a step must do so on the devices of ",
                    "all parameters, got ", on->device(), " and not ", other->device());
}

void Step::make_tasks() {
  const std::vector<Group>& updated = groups_.updated().all;
  for (const algorithms::Algorithm* algorithm : algorithms::all()) {
    for (const Group& group : groups_.given().all) {
      if (group.algorithm != algorithm) continue;
      for (const at::Tensor& X : group.X) tasks_on(X.device());
    }
  }
  check_capture();
  std::vector<algorithms::Batch> batches = batches_of(*plan_, groups_.updated(), copies_);
  for (const algorithms::Algorithm* algorithm : algorithms::all()) {  // in the order of the plan
    for (std::size_t g = 0; g < updated.size(); ++g) {
      if (updated[g].algorithm == algorithm) add_tasks(g, batches);
    }
  }
  for (DeviceTasks& tasks : devices_) {
    tasks.allocate(!plan_->axes.empty());
    count_ += tasks.size();
  }
  if (in_flight_) in_flight_->allocate(!plan_->axes.empty());
}

// Those of an updated group, from the batches of all.
void Step::add_tasks(std::size_t index, std::vector<algorithms::Batch>& batches) {
  const Group& group = groups_.updated().all[index];
  const Bucket* bucket = groups_.bucket_of(index);
  const bool leaves_in_flight = group.algorithm->leaves_in_flight(group.options);
  if (leaves_in_flight && !in_flight_) in_flight_ = std::make_unique<InFlight>();
  if (leaves_in_flight) in_flight_->keep(group);
  std::vector<algorithms::Batch> of_bucket;
  std::vector<int64_t> workspaces;
  for (std::size_t i = 0; i < batches.size(); ++i) {
    const PlannedBatch& planned = plan_->batches[i];
    const Alike& alike = plan_->alike[planned.alike];
    if (alike.group != index) continue;
    if (bucket) {
      of_bucket.push_back(std::move(batches[i]));
      workspaces.push_back(planned.cost.workspace);
      continue;
    }
    std::string what = alike.layout.is_local() ? "" : plan_->description(planned, groups_.updated());
    if (leaves_in_flight) in_flight_->add(batches[i], group, planned.cost.workspace_in_flight, what);
    DeviceTasks& tasks = tasks_on(group.X[alike.members.front()].device());
    tasks.add(std::move(batches[i]), group, planned.cost.workspace, std::move(what));
  }
  if (!bucket) return;
  std::string what = c10::str(bucket->X.size(), " parameters under ", group.algorithm->title);
  tasks_on(bucket->X.front().device()).add(*bucket, std::move(of_bucket), group, workspaces, std::move(what));
}

std::vector<at::Tensor> Step::gradients() const {
  std::vector<at::Tensor> all;
  for (const Group& group : groups_.given().all) all.insert(all.end(), group.G.begin(), group.G.end());
  return all;
}

// Where a graph may capture the step, the devices decide, and the tasks look at what they have decided.
bool Step::decide_whether_left_out(Report& report) {
  if (!policy_.may_leave_out() || devices_.empty()) return false;
  if (!groups_.given().capturable) {
    const Decision decision = decide(policy_, gradients(), plan_->axes);
    report.nonfinite.known = decision.nonfinite;
    return decision.left_out;
  }
  std::vector<at::Tensor> left_out;
  for (const DeviceTasks& tasks : devices_) left_out.push_back(tasks.left_out());
  for (const at::Tensor& found : decide_on_devices(policy_, gradients(), plan_->axes, left_out)) {
    report.nonfinite.add(found);
  }
  report.left_out = left_out.front();
  return false;
}

void Step::find_zero_gradients() {
  find_unchanged(groups_.given().all, plan_->axes, policy_.nonfinite == Nonfinite::zero);
  for (const DeviceTasks& tasks : devices_) {
    if (tasks.left_out().defined()) leave_unchanged(groups_.given().all, tasks.left_out());
  }
}

Report Step::run() {
  at::NoGradGuard no_grad;
  if (in_flight_) in_flight_->check_axes();
  Report report;
  report.batches = static_cast<int64_t>(batches());
  for (const DeviceTasks& tasks : devices_) report.workspace_bytes += tasks.workspace_bytes();
  if (in_flight_) report.workspace_bytes += in_flight_->workspace_bytes();
  report.skipped = decide_whether_left_out(report);
  if (report.skipped) {
    in_flight_.reset();
    return report;
  }
  report.expected_traffic = plan_->expected_traffic;

  find_zero_gradients();
  wrote_ = true;
  std::function<void()> take_off;
  if (in_flight_) {
    take_off = [this] {
      for (DeviceTasks& tasks : devices_) tasks.take_off();
      in_flight_->start();
    };
  }
  std::size_t before = 0;
  for (DeviceTasks& tasks : devices_) {
    tasks.run(completed_, before, batches(), std::exchange(take_off, {}));
    before += tasks.size();
  }
  finish();
  for (const DeviceTasks& tasks : devices_) tasks.report(report);
  return report;
}

void Step::finish() {
  copies_.write_back();
  for (const Group& group : groups_.given().all) {
    std::for_each(group.X.begin(), group.X.end(), bump_version);
    if (!groups_.given().capturable) std::for_each(group.steps.begin(), group.steps.end(), increment);
  }
  if (!groups_.given().capturable) return;
  for (const DeviceTasks& tasks : devices_) tasks.increment(groups_.given());
}

}  // namespace torchdion::engine
