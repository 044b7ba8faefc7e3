#include "engine/in_flight.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/Event.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <system_error>
#include <utility>

#include "comm/in_flight.h"
#include "linalg/threads.h"
#include "words.h"

namespace torchdion::engine {

namespace {

// One for each GPU, beside those that programs use: torch keeps memory for each stream.
c10::Stream side_of(c10::Device device) {
  static std::mutex mutex;
  static std::map<std::pair<c10::DeviceType, c10::DeviceIndex>, c10::Stream> streams;
  const std::lock_guard lock(mutex);
  const std::pair key(device.type(), device.index());
  const auto found = streams.find(key);
  if (found != streams.end()) return found->second;
  return streams.emplace(key, c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device)).first->second;
}

}  // namespace

// What goes on beside the current stream of a GPU.
struct InFlight::Side {
  explicit Side(c10::Device device)
      : implementation(device.type()),
        origin(implementation.getStream(device)),
        stream(side_of(device)),
        begin(device.type()),
        end(device.type()),
        landed(device.type()) {
    begin.record(origin);
    begin.block(stream);
  }

  c10::impl::VirtualGuardImpl implementation;
  c10::Stream origin, stream;
  c10::Event begin, end, landed;
};

InFlight::InFlight() = default;

InFlight::~InFlight() {
  if (under_way_ && getpid() != process_) {  // the thread is the other process' own
    if (thread_.joinable()) thread_.detach();
    return;
  }
  try {
    wait();
  } catch (...) {  // there is no one to tell
  }
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
    const bool is_known = std::ranges::find(axes_, axis->line, &Axis::line) != axes_.end();
    if (!axis->absent() && !is_known) axes_.push_back(*axis);
  }
  const c10::Device device = batch.X.device;
  tasks_on(device).add_in_flight(std::move(rest), group, workspace, std::move(what));
  ++count_;
}

std::vector<Axis> InFlight::axes_without_group() const {
  std::vector<Axis> without;
  std::ranges::copy_if(axes_, std::back_inserter(without), std::not_fn(comm::has_in_flight_group));
  return without;
}

void InFlight::check_axes() const {
  const std::vector<Axis> without = axes_without_group();
  TORCH_CHECK_VALUE(
      without.empty(), prefix(), "the axis '", without.front().name(),
      "' must have a second process group for what goes on between steps (set_in_flight_group), got none");
  const auto taken = std::find_if(axes_.begin(), axes_.end(), comm::is_under_way);
  TORCH_CHECK_VALUE(taken == axes_.end(), prefix(), "the axis '", taken->name(), "' must carry what one optimizer has ",
                    "left in flight, got another's: give each an Axis of its own");
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
  bool needs_thread = false;
  for (DeviceTasks& tasks : devices_) {
    tasks.change_groups();
    if (tasks.device().is_cpu()) {
      needs_thread = true;
      continue;
    }
    sides_.push_back(std::make_unique<Side>(tasks.device()));
    tasks.record_stream(sides_.back()->stream);
  }
  under_way_ = true;
  for (const Axis& axis : axes_) comm::set_under_way(axis, true);
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
  try {
    const c10::InferenceMode inference(is_inference_);
    const at::NoGradGuard no_grad;
    std::size_t before = 0, side = 0;
    for (DeviceTasks& tasks : devices_) {
      std::optional<c10::StreamGuard> guard;
      if (!tasks.device().is_cpu()) guard.emplace(sides_[side]->stream);
      tasks.run(completed_, before, count_);
      before += tasks.size();
      if (guard) sides_[side]->end.record(sides_[side]->stream);
      side += guard.has_value();
    }
  } catch (...) {
    error_ = std::current_exception();
  }
}

Report InFlight::wait() {
  const std::lock_guard lock(mutex_);
  Report report;
  if (!under_way_) return report;
  TORCH_CHECK(getpid() == process_, prefix(), "what a step has left in flight belongs to the process that took it; ",
              "wait for it (stats()) before a fork");
  if (thread_.joinable()) thread_.join();
  under_way_ = false;
  for (const Axis& axis : axes_) comm::set_under_way(axis, false);
  for (const auto& side : sides_) side->end.block(side->implementation.getStream(side->stream.device()));
  for (const DeviceTasks& tasks : devices_) {
    tasks.move_counts();
    tasks.report(report);
  }
  if (error_) std::rethrow_exception(error_);
  const at::NoGradGuard no_grad;
  for (DeviceTasks& tasks : devices_) tasks.land();
  for (const auto& side : sides_) {  // to whose memory the workspaces go back
    side->landed.record(side->implementation.getStream(side->stream.device()));
    side->landed.block(side->origin);
  }
  return report;
}

}  // namespace torchdion::engine
