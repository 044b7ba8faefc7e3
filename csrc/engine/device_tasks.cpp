#include "engine/device_tasks.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/ScopeExit.h>

#include <algorithm>

#include "comm/in_flight.h"
#include "linalg/accumulate.h"
#include "linalg/matrices.h"

namespace torchdion::engine {

namespace {

// Tasks alive at a time where ranks communicate: one computes while the others wait. Elsewhere there is nothing to
// overlap.
constexpr int kWidth = 3;

constexpr int64_t kCacheLine = 64;  // bytes

}  // namespace

void Count::add(const at::Tensor& number) {
  if (number.is_cpu()) {
    known += number.item<int64_t>();
    return;
  }
  const auto found = std::ranges::find(on_devices, number.device(), &at::Tensor::device);
  if (found == on_devices.end()) {
    on_devices.push_back(number);
  } else {
    *found = found->add(number);
  }
}

void Count::add(const Count& more) {
  known += more.known;
  for (const at::Tensor& number : more.on_devices) add(number);
}

int64_t Count::total() const {
  int64_t sum = known;
  for (const at::Tensor& number : on_devices) sum += number.item<int64_t>();
  return sum;
}

// Averages of gradients need no workspace, and little time but that of their messages.
bool DeviceTasks::is_early(const PlannedTask& task) {
  return !task.bucket && task.batches.front().mean.defined() && task.bytes.front() == 0;
}

DeviceTasks::DeviceTasks(c10::Device device, const NonfinitePolicy& policy, const GradientScaling& scaling,
                         bool capturable)
    : device_(device) {
  const at::TensorOptions options = at::TensorOptions(at::kFloat).device(device);
  if (policy.nonfinite == Nonfinite::zero) zeroed_ = at::zeros({1}, options.dtype(at::kLong));
  if (capturable && policy.may_leave_out()) left_out_ = at::empty({1}, options);
  if (scaling.scale.defined()) divisor_ = scaling.scale.to(options, /*non_blocking=*/device.is_cuda());
}

linalg::Frozen DeviceTasks::frozen() const {
  return {left_out_.defined() ? left_out_.const_data_ptr<float>() : nullptr};
}

void DeviceTasks::prepare(algorithms::Batch& batch) {
  batch.frozen = frozen();
  if (zeroed_.defined()) batch.gradients.zeroed = zeroed_.mutable_data_ptr<int64_t>();
  if (divisor_.defined()) batch.gradients.divisor = divisor_.const_data_ptr<float>();
  if (batch.shape.ranks.empty()) return;
  if (!signal_.defined()) signal_ = at::zeros({2}, at::TensorOptions(at::kLong).device(device_));
  batch.counts = {signal_.mutable_data_ptr<int64_t>(), signal_.mutable_data_ptr<int64_t>() + 1};
}

void DeviceTasks::add(algorithms::Batch batch, const Group& group, int64_t workspace, std::string what) {
  prepare(batch);
  const int64_t bytes = workspace * static_cast<int64_t>(c10::elementSize(batch.shape.computing));
  tasks_.push_back({{std::move(batch)}, group.algorithm, group.options, {bytes}, 0, std::move(what)});
}

void DeviceTasks::add_in_flight(algorithms::Batch batch, const Group& group, int64_t workspace, std::string what) {
  batch.workspace = at::empty({workspace}, at::TensorOptions(batch.shape.computing).device(device_));
  bytes_in_flight_ += static_cast<int64_t>(batch.workspace.nbytes());
  add(std::move(batch), group, 0, std::move(what));
  tasks_.back().in_flight = true;
}

void DeviceTasks::add(const Bucket& bucket, std::vector<algorithms::Batch> batches, const Group& group,
                      const std::vector<int64_t>& workspaces, std::string what) {
  std::vector<int64_t> bytes;
  for (std::size_t i = 0; i < batches.size(); ++i) {
    prepare(batches[i]);
    bytes.push_back(workspaces[i] * static_cast<int64_t>(c10::elementSize(batches[i].shape.computing)));
  }
  tasks_.push_back({std::move(batches), group.algorithm, group.options, std::move(bytes), room_for_gradients(bucket),
                    std::move(what), &bucket, &group});
}

void DeviceTasks::allocate(bool communicates) {
  const auto later = std::stable_partition(tasks_.begin(), tasks_.end(), is_early);
  early_ = later - tasks_.begin();
  slots_ = communicates ? kWidth : 1;
  int64_t bytes = 0;
  for (const PlannedTask& task : tasks_) {
    bytes = std::max(bytes, task.room);
    for (const int64_t of_batch : task.bytes) bytes = std::max(bytes, of_batch);
  }
  // A product's last bits may depend on where its operands begin in a cache line: every slot begins one, so that copies
  // of a matrix stay equal on ranks whose other matrices need workspaces of other sizes.
  if (communicates) bytes = (bytes + kCacheLine - 1) / kCacheLine * kCacheLine;
  workspace_ = at::empty({slots_, bytes}, at::TensorOptions(at::kByte).device(device_));
}

// No number of the dtype may begin where an empty slot does.
at::Tensor DeviceTasks::workspace_of(int slot, int64_t bytes, at::ScalarType dtype) const {
  if (bytes == 0) return at::empty({0}, workspace_.options().dtype(dtype));
  return workspace_[slot].narrow(0, 0, bytes).view(dtype);
}

void DeviceTasks::run(std::size_t& completed, std::size_t before, std::size_t planned,
                      const std::function<void()>& then) {
  const c10::DeviceGuard guard(device_);
  std::vector<comm::Scheduler::Factory> factories;
  for (PlannedTask& task : tasks_) {
    factories.push_back([this, &task](int slot) {
      if (task.in_flight) {
        return task.algorithm->delayed->in_flight(as_asked(task.batches.front(), task.options), task.options);
      }
      for (std::size_t i = 0; i < task.batches.size(); ++i) {
        algorithms::Batch& batch = task.batches[i];
        batch.workspace = workspace_of(slot, task.bytes[i], batch.shape.computing);
      }
      if (!task.bucket) return update(*task.algorithm, std::move(task.batches.front()), task.options);
      int64_t* zeroed = zeroed_.defined() ? zeroed_.mutable_data_ptr<int64_t>() : nullptr;
      const at::Tensor room = workspace_of(slot, task.room, at::kByte);
      return update_bucket(task.bucket, std::move(task.batches), task.group, room, zeroed);
    });
  }
  comm::Scheduler scheduler(slots_);
  const auto count = c10::make_scope_exit([&] { completed = before + scheduler.completed(); });
  try {
    scheduler.run(factories, early_, then);
  } catch (const c10::DistBackendError& error) {
    const std::size_t failed = scheduler.failed();
    C10_THROW_ERROR(DistBackendError, c10::str(error.msg(), " (in batch ", before + failed + 1, " of ", planned, ", ",
                                               tasks_[failed].what, ")"));
  }
}

void DeviceTasks::take_off() {
  const c10::DeviceGuard guard(device_);
  for (const PlannedTask& task : tasks_) {
    if (!task.algorithm->leaves_in_flight(task.options)) continue;
    task.algorithm->delayed->take_off(as_asked(task.batches.front(), task.options), task.options);
  }
}

void DeviceTasks::change_groups() {
  for (PlannedTask& task : tasks_) {
    layouts_.push_back(task.batches.front().layout);
    task.batches.front().layout = comm::in_flight(layouts_.back());
  }
}

void DeviceTasks::move_counts() const {
  for (const Layout& layout : layouts_) comm::move_counts(layout);
}

void DeviceTasks::land() {
  const c10::DeviceGuard guard(device_);
  for (const PlannedTask& task : tasks_) task.algorithm->delayed->land(task.batches.front(), task.options);
}

void DeviceTasks::record_stream(c10::Stream stream) const {
  if (signal_.defined()) signal_.record_stream(stream);
  for (const PlannedTask& task : tasks_) {
    const algorithms::Batch& batch = task.batches.front();
    if (batch.workspace.numel() > 0) batch.workspace.record_stream(stream);
    for (const at::Tensor& mark : batch.marks) mark.record_stream(stream);
  }
}

// At once for all parameters of the device.
void DeviceTasks::increment(const Groups& groups) const {
  const c10::DeviceGuard guard(device_);
  std::vector<at::Tensor> steps;
  for (const Group& group : groups.all) {
    for (const at::Tensor& step : group.steps) {
      if (step.device() == device_) steps.push_back(step.view({1, 1}));
    }
  }
  const std::vector<at::Tensor> ones(steps.size(), at::ones({1, 1}, steps.front().options()));
  linalg::accumulate_(linalg::Matrices(steps), linalg::Matrices(ones), {.frozen = frozen()});
}

void DeviceTasks::report(Report& report) const {
  if (signal_.defined()) {
    if (left_out_.defined()) signal_.masked_fill_(left_out_.ne(0), 0);  // factors are zero in a step that is left out
    report.without_signal.add(signal_.narrow(0, 0, 1));
    report.in_margin.add(signal_.narrow(0, 1, 1));
  }
  if (zeroed_.defined()) report.nonfinite.add(zeroed_);
}

}  // namespace torchdion::engine
