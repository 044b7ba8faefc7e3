// One optimizer step. A Step is made in two parts, so that all that can be refused or allocated is, before the first
// write.
#pragma once

#include <memory>
#include <vector>

#include "engine/batches.h"
#include "engine/device_tasks.h"
#include "engine/gradients.h"
#include "engine/groups.h"
#include "engine/in_flight.h"
#include "engine/plan.h"

namespace torchdion::engine {

class Step {
 public:
  // Checks, plans and allocates; writes nothing. Throws c10::Error with one sentence for what it refuses.
  // known: of the step before, which becomes that of this one.
  Step(Groups groups, Nonfinite nonfinite, GradientScaling scaling = {}, KnownPlan* known = nullptr);
  Step(const Step&) = delete;  // its tasks point to its groups

  // Updates the parameters and their state. When it throws after wrote(), they are no longer what any step leaves.
  Report run();

  // What it leaves under way, null for nothing: before run(), to give second groups to its axes; after it, started, for
  // who waits for it.
  InFlight* in_flight() { return in_flight_.get(); }
  std::unique_ptr<InFlight> take_in_flight() { return std::move(in_flight_); }

  bool wrote() const { return wrote_; }
  std::size_t batches() const { return count_; }
  std::size_t completed() const { return completed_; }

 private:
  void find_plan(Groups groups, KnownPlan* known);
  void check(const Group& group, bool capturable) const;
  void check_numbers(const Group& group, bool capturable) const;
  void check_gradients_and_states(const Group& group) const;
  void check_capture() const;
  DeviceTasks& tasks_on(c10::Device device);
  void make_tasks();
  void add_tasks(std::size_t group, std::vector<algorithms::Batch>& batches);
  std::vector<at::Tensor> gradients() const;
  bool decide_whether_left_out(Report& report);
  void find_zero_gradients();
  void finish();

  SharedGroups groups_;
  NonfinitePolicy policy_;
  GradientScaling scaling_;
  std::shared_ptr<const Plan> plan_;
  std::vector<DeviceTasks> devices_;  // in the order of the devices' first parameters
  std::unique_ptr<InFlight> in_flight_;
  Copies copies_;
  std::size_t count_ = 0, completed_ = 0;  // tasks: of batches, or of a bucket's
  bool wrote_ = false;
};

}  // namespace torchdion::engine
