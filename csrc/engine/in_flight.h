// What a step leaves under way: batches that go on when it has returned, beside the next forward and backward pass, and
// end before the next step begins. The front that took the step owns them.
#pragma once

#include <ATen/core/Tensor.h>

#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/device_tasks.h"
#include "engine/groups.h"

namespace torchdion::engine {

class InFlight {
 public:
  InFlight();
  InFlight(const InFlight&) = delete;
  // Waits; an error is lost.
  ~InFlight();

  // Before start(): adds what the batch leaves, one of this group, and keeps the memory of a group's states.
  void keep(const Group& group);
  void add(const algorithms::Batch& batch, const Group& group, int64_t workspace, std::string what);
  void allocate(bool communicates);
  int64_t workspace_bytes() const;
  // Axes without a second group (Axis::set_in_flight_group), each once, in an order that all of their ranks share.
  std::vector<Axis> axes_without_group() const;
  // Throws c10::ValueError where there are any.
  void check_axes() const;

  // On GPUs everything is enqueued, on streams of its own, which begin where the current ones are; on a CPU a thread
  // takes it over, on one core. What it writes belongs to it until it is waited for.
  void start();
  // Rethrows what failed; the states are no longer what any step leaves then. The current streams wait for what GPUs
  // still do. A second call returns at once. A forked process is refused: the thread is not its own.
  Report wait();

  std::size_t batches() const { return count_; }
  std::size_t completed() const { return completed_; }

 private:
  struct Side;

  DeviceTasks& tasks_on(c10::Device device);
  void run();

  std::vector<DeviceTasks> devices_;
  std::vector<at::Tensor> kept_;  // whose memory the batches point to
  std::vector<Axis> axes_;
  std::vector<std::unique_ptr<Side>> sides_;  // of GPUs
  std::thread thread_;
  std::exception_ptr error_;
  std::size_t count_ = 0, completed_ = 0;
  bool is_inference_ = false;  // as the step was taken
  bool under_way_ = false;
  std::mutex mutex_;  // threads may wait at once
  int process_ = 0;   // that started it
};

}  // namespace torchdion::engine
