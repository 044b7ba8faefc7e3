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
#include "engine/groups.h"

namespace torchdion::engine {

// What a step found and did.
struct Report {
  bool skipped = false;         // left out whole, because of Nonfinite::skip_step or GradientScaling::found_inf
  int64_t nonfinite = 0;        // gradient entries that were NaN or infinite; not counted under propagate
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
  std::size_t batches() const { return tasks_.size(); }
  std::size_t completed() const { return completed_; }

 private:
  using MakeTask = std::function<comm::Task<>(at::Tensor workspace)>;
  struct PlannedTask {
    MakeTask make;
    int64_t workspace;  // elements
    at::ScalarType dtype;
    std::string what;  // in the error of a collective
  };

  void plan(const DionGroup& group);
  void plan(const LionGroup& group);
  void plan(const AdamWGroup& group);
  template <class Group>
  algorithms::ElementwiseBatch elementwise(const Group& group, const std::vector<std::size_t>& members);
  template <class Group>
  void add_axes(const std::vector<Group>& groups);
  int64_t count_nonfinite() const;
  algorithms::Dealt deal(const algorithms::DionBatch& batch);
  void expect(const algorithms::DionBatch& batch, const DionHyperparameters& hyper, at::ScalarType dtype);
  bool is_left_out(Report& report) const;
  void run_tasks();
  void finish();

  Groups groups_;
  Nonfinite nonfinite_;
  double gradient_factor_ = 1;
  bool has_found_inf_ = false;
  double found_inf_ = 0;
  std::vector<PlannedTask> tasks_;
  std::vector<Axis> axes_;  // of all layouts
  std::map<std::string, int64_t> expected_traffic_;
  std::map<const comm::Line*, int64_t> dealt_;  // matrices to orthonormalize, by the axis that shares them out
  Copies copies_;
  at::Tensor workspace_;
  int64_t zeroed_ = 0;
  std::size_t completed_ = 0;
  bool wrote_ = false;
};

}  // namespace torchdion::engine
