// One optimizer step. The engine keeps nothing between steps: the fronts own parameters and state, and hand both over
// here. A Step is made in two parts, so that all that can be refused or allocated is, before the first write.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "algorithms/elementwise.h"
#include "comm/scheduler.h"
#include "engine/batches.h"
#include "engine/count.h"
#include "engine/groups.h"
#include "engine/verdict.h"

namespace torchdion::engine {

// What a step found and did.
struct Report {
  bool skipped = false;         // left out whole, because of Nonfinite::skip_step or GradientScaling::found_inf
  at::Tensor left_out;          // or one number, not 0 where it is, that a device is still computing
  Count nonfinite;              // gradient entries that were NaN or infinite; not counted under propagate
  Count without_signal;         // columns of P, in what this rank orthonormalized
  Count in_margin;              // those of them that were longer than their noise
  int64_t batches = 0;          // tasks that the step was cut into
  int64_t workspace_bytes = 0;  // memory for P and R
  std::map<std::string, int64_t> expected_traffic;  // elements by axis, by the formula: what its counters will add
};

class Step {
 public:
  // Checks, groups and allocates; writes nothing. Throws c10::Error with one sentence for what it refuses.
  Step(Groups groups, Nonfinite nonfinite, GradientScaling scaling = {});
  Step(const Step&) = delete;  // its tasks point to its counters

  // Updates the parameters and their state. When it throws after wrote(), they are no longer what any step leaves.
  Report run();

  bool wrote() const { return wrote_; }
  std::size_t batches() const { return planned_; }
  std::size_t completed() const { return completed_; }

 private:
  using MakeTask = std::function<comm::Task<>(at::Tensor workspace)>;
  struct PlannedTask {
    MakeTask make;
    int64_t workspace;  // elements
    at::ScalarType dtype;
    std::string what;  // in the error of a collective
  };
  // What runs on one device, and the numbers in its memory that its tasks share; undefined where they need none.
  struct DeviceTasks {
    c10::Device device;
    at::Tensor zeroed;    // int64: gradient entries that counted as zero
    at::Tensor signal;    // int64: without_signal and in_margin of Report
    at::Tensor left_out;  // FP32: not 0 where the step is left out
    at::Tensor divisor;   // FP32: what a gradient scaler has multiplied by
    std::vector<PlannedTask> tasks = {};
    at::Tensor workspace = {};
  };

  template <class Group>
  void check(const Group& group) const;
  void plan(const DionGroup& group);
  void plan(const LionGroup& group);
  void plan(const AdamWGroup& group);
  template <class Hyperparameters>
  void plan(std::vector<algorithms::ElementwiseBatch> batches, const Hyperparameters& hyper, const char* name,
            comm::Task<> (*update)(algorithms::ElementwiseBatch, Hyperparameters));
  DeviceTasks& on(c10::Device device);
  linalg::GradientRule rule_on(c10::Device device);
  void check_capture() const;
  void allocate(DeviceTasks& tasks);
  void add_axes(const std::vector<Layout>& layouts);
  algorithms::Dealt deal(const algorithms::DionBatch& batch);
  void expect(const algorithms::DionBatch& batch, const DionHyperparameters& hyper, at::ScalarType dtype);
  bool is_left_out(Report& report);
  void leave_zero_gradients_out();
  void run_tasks(DeviceTasks& tasks);
  void finish();
  void increment_on(const DeviceTasks& tasks);

  Groups groups_;
  Doubts doubts_;
  GradientScaling scaling_;
  std::vector<DeviceTasks> tasks_;  // in the order of the devices' first parameters
  std::vector<Axis> axes_;          // of all layouts
  std::map<std::string, int64_t> expected_traffic_;
  std::map<const comm::Line*, int64_t> dealt_;  // matrices to orthonormalize, by the axis that shares them out
  Copies copies_;
  std::size_t planned_ = 0, completed_ = 0;  // tasks
  bool wrote_ = false;
};

}  // namespace torchdion::engine
