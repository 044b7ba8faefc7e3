#include "engine/in_flight.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/Event.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <unistd.h>

#include <algorithm>
#include <system_error>

#include "comm/in_flight.h"
#include "linalg/threads.h"
#include "words.h"

namespace torchdion::engine {

// A stream of a GPU beside the current one.
struct InFlight::Side {
  explicit Side(c10::Device device)
      : implementation(device.type()),
        stream(implementation.getStreamFromGlobalPool(device)),
        begin(device.type()),
        end(device.type()) {
    begin.record(implementation.getStream(device));
    begin.block(stream);
  }

  c10::impl::VirtualGuardImpl implementation;
  c10::Stream stream;
  c10::Event begin, end;
};

InFlight::InFlight() = default;

InFlight::~InFlight() {
  try {
    wait();
  } catch (...) {  // there is no one to tell
  }
  if (thread_.joinable()) thread_.detach();  // of the process that forked this one
}

DeviceTasks& InFlight::tasks_on(c10::Device device) {
  for (DeviceTasks& tasks : devices_) {
    if (tasks.device() == device) return tasks;
  }
  return devices_.emplace_back(device, NonfinitePolicy(), GradientScaling(), /*capturable=*/false);
}

void InFlight::keep(const Group& group) {
  for (const std::vector<at::Tensor>& state : group.states) kept_.insert(kept_.end(), state.begin(), state.end());
}

void InFlight::add(const algorithms::Batch& batch, const Group& group, int64_t workspace, std::string what) {
  algorithms::Batch rest = batch;
  rest.X = rest.G = {};  // a gradient's memory is free as soon as the step has returned
  for (const Axis* axis : {&batch.layout.rows, &batch.layout.cols, &batch.layout.replicas}) {
    const auto is_same = [&](const Axis& other) { return other.line == axis->line; };
    if (!axis->absent() && std::none_of(axes_.begin(), axes_.end(), is_same)) axes_.push_back(*axis);
  }
  const c10::Device device = batch.X.device;
  tasks_on(device).add_in_flight(std::move(rest), group, workspace, std::move(what));
  ++count_;
}

std::vector<Axis> InFlight::axes_without_group() const {
  std::vector<Axis> without;
  std::copy_if(axes_.begin(), axes_.end(), std::back_inserter(without),
               [](const Axis& axis) { return !comm::has_in_flight_group(axis); });
  return without;
}

void InFlight::check_axes() const {
  const std::vector<Axis> without = axes_without_group();
  TORCH_CHECK_VALUE(
      without.empty(), prefix(), "the axis '", without.front().name(),
      "' must have a second process group for what goes on between steps (set_in_flight_group), got none");
}

void InFlight::allocate(bool communicates) {
  for (DeviceTasks& tasks : devices_) tasks.allocate(communicates);
}

int64_t InFlight::workspace_bytes() const {
  int64_t bytes = 0;
  for (const DeviceTasks& tasks : devices_) bytes += tasks.workspace_bytes();
  return bytes;
}

void InFlight::start() {
  is_inference_ = c10::InferenceMode::is_enabled();
  process_ = getpid();
  under_way_ = true;
  bool needs_thread = false;
  for (DeviceTasks& tasks : devices_) {
    tasks.change_groups();
    if (tasks.device().is_cpu()) {
      needs_thread = true;
    } else {
      sides_.push_back(std::make_unique<Side>(tasks.device()));
    }
  }
  if (!needs_thread) return run();
  try {
    thread_ = std::thread([this] {
      linalg::compute_on_one_core();
      run();
    });
  } catch (const std::system_error&) {  // the system has no thread to give
    run();
  }
}

void InFlight::run() {
  const c10::InferenceMode inference(is_inference_);
  const at::NoGradGuard no_grad;
  std::vector<c10::Stream> previous;
  for (const auto& side : sides_) previous.push_back(side->implementation.exchangeStream(side->stream));
  try {
    std::size_t before = 0;
    for (DeviceTasks& tasks : devices_) {
      tasks.run(completed_, before, count_);
      before += tasks.size();
    }
  } catch (...) {
    error_ = std::current_exception();
  }
  for (std::size_t i = 0; i < sides_.size(); ++i) {
    sides_[i]->end.record(sides_[i]->stream);
    sides_[i]->implementation.exchangeStream(previous[i]);
  }
}

Report InFlight::wait() {
  Report report;
  if (!under_way_ || getpid() != process_) return report;
  if (thread_.joinable()) thread_.join();
  under_way_ = false;
  for (const auto& side : sides_) side->end.block(side->implementation.getStream(side->stream.device()));
  for (const DeviceTasks& tasks : devices_) {
    tasks.count();
    tasks.report(report);
  }
  if (error_) std::rethrow_exception(error_);
  const at::NoGradGuard no_grad;
  for (DeviceTasks& tasks : devices_) tasks.land();
  return report;
}

}  // namespace torchdion::engine
