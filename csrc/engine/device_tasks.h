// The tasks of a step that run on one device, and the numbers in its memory that they share.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "algorithms/batch.h"
#include "comm/scheduler.h"
#include "engine/buckets.h"
#include "engine/gradients.h"
#include "engine/groups.h"

namespace torchdion::engine {

// How many of something, part of which GPUs may still be counting.
struct Count {
  int64_t known = 0;
  std::vector<at::Tensor> on_devices;  // more of them: one number on each device

  void add(const at::Tensor& number);
  void add(const Count& more);
  int64_t total() const;  // waits
};

// What a step found and did.
struct Report {
  bool skipped = false;         // left out whole, because of Nonfinite::skip_step or GradientScaling::found_inf
  at::Tensor left_out;          // or one number, not 0 where it is, that a device is still computing
  Count nonfinite;              // gradient entries that were NaN or infinite; not counted under propagate
  Count without_signal;         // columns of factors, in what this rank orthonormalized
  Count in_margin;              // those of them that were longer than their noise
  int64_t batches = 0;          // tasks that the step was cut into
  int64_t workspace_bytes = 0;  // of their factors
  std::map<std::string, int64_t> expected_traffic;  // elements by axis, by the formula: what its counters will add
};

class DeviceTasks {
 public:
  DeviceTasks(c10::Device device, const NonfinitePolicy& policy, const GradientScaling& scaling, bool capturable);

  // Adds a task of one batch, or of all those of a bucket, each with so many elements of workspace, and gives them what
  // the device's batches share. `what`: its name in the error of a collective.
  void add(algorithms::Batch batch, const Group& group, int64_t workspace, std::string what);
  // What a batch leaves in flight, which keeps its workspace.
  void add_in_flight(algorithms::Batch batch, const Group& group, int64_t workspace, std::string what);
  void add(const Bucket& bucket, std::vector<algorithms::Batch> batches, const Group& group,
           const std::vector<int64_t>& workspaces, std::string what);
  // Workspaces for as many tasks as are alive at a time.
  void allocate(bool communicates);

  // Waits for all tasks. `completed` becomes the number of those that have ended, also when one fails; the error of a
  // collective names the batch: `before` of the step's `planned` ones are on other devices. `then` is called when what
  // is to be averaged is under way, before other tasks begin.
  void run(std::size_t& completed, std::size_t before, std::size_t planned, const std::function<void()>& then = {});
  // Each count of steps grows by one, unless the step is left out.
  void increment(const Groups& groups) const;
  // Before anything runs: what leaves something in flight takes off.
  void take_off();
  // Of tasks in flight. What they exchange from now on goes over the second groups of their axes, which all have, see
  // comm/in_flight.h. When they have ended, it counts as the axes' own; and what they have found goes to the states.
  void change_groups();
  void move_counts() const;
  void land();
  // A stream beside the current one works on their workspaces.
  void record_stream(c10::Stream stream) const;
  // Adds what the tasks have counted.
  void report(Report& report) const;

  c10::Device device() const { return device_; }
  std::size_t size() const { return tasks_.size(); }
  int64_t workspace_bytes() const { return workspace_.numel() + bytes_in_flight_; }
  // One FP32 number, not 0 where the step is left out; undefined where only the host decides.
  const at::Tensor& left_out() const { return left_out_; }

 private:
  struct PlannedTask {
    std::vector<algorithms::Batch> batches;
    const algorithms::Algorithm* algorithm;
    algorithms::Options options;
    std::vector<int64_t> bytes;  // of workspace, of each batch
    int64_t room;                // of a bucket's gradients, in the same memory
    std::string what;
    const Bucket* bucket = nullptr;  // null: it is one batch
    const Group* group = nullptr;    // of a bucket
    bool in_flight = false;
  };

  static bool is_early(const PlannedTask& task);
  linalg::Frozen frozen() const;
  void prepare(algorithms::Batch& batch);
  at::Tensor workspace_of(int slot, int64_t bytes, at::ScalarType dtype) const;

  c10::Device device_;
  std::vector<PlannedTask> tasks_;
  std::vector<Layout> layouts_ = {};  // as those in flight had them
  int64_t bytes_in_flight_ = 0;       // of their workspaces
  at::Tensor workspace_;
  int slots_ = 1;          // tasks alive at a time, beside early ones
  std::size_t early_ = 0;  // how many of the first tasks are, see comm::Scheduler
  at::Tensor left_out_;
  at::Tensor zeroed_;   // int64: gradient entries that counted as zero
  at::Tensor signal_;   // int64: without_signal and in_margin of Report
  at::Tensor divisor_;  // FP32: what a gradient scaler has multiplied by
};

}  // namespace torchdion::engine
