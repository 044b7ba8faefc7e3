// What a step looks for in all gradients before it writes: entries that are not finite, which may leave it out whole on
// all ranks alike, and matrices that are zero.
#pragma once

#include <torchdion/layout.h>

#include <string>
#include <vector>

#include "engine/groups.h"

namespace torchdion::engine {

// Gradients whose memory does not hold their numbers, from complex views and forward-mode derivatives, become some that
// does.
void materialize(std::vector<at::Tensor>& gradients);

// What may leave a step out.
struct NonfinitePolicy {
  Nonfinite nonfinite = Nonfinite::propagate;
  at::Tensor found_inf = {};  // of GradientScaling

  bool looks_at_gradients() const { return nonfinite == Nonfinite::skip_step || nonfinite == Nonfinite::raise; }
  bool may_leave_out() const { return found_inf.defined() || looks_at_gradients(); }
};

struct Decision {
  bool left_out = false;
  int64_t nonfinite = 0;  // entries of this rank's gradients that are NaN or infinite, where they were counted
};

// "nonfinite='raise'", as the program writes it.
std::string raising();

// `gradients` are those of all groups, `axes` those of all layouts. Waits for the devices and the ranks. Throws
// c10::ValueError on all ranks where gradients that are not finite are to raise.
Decision decide(const NonfinitePolicy& policy, const std::vector<at::Tensor>& gradients, const std::vector<Axis>& axes);

// The same without waiting: `left_out`, one FP32 number on each device that has parameters, become 1 or 0. Returns the
// counts of entries that are NaN or infinite, one number on each device, where these are to be skipped.
std::vector<at::Tensor> decide_on_devices(const NonfinitePolicy& policy, const std::vector<at::Tensor>& gradients,
                                          const std::vector<Axis>& axes, const std::vector<at::Tensor>& left_out);

// Makes room for what find_unchanged() finds, before batches are made of the group.
void allocate_unchanged(Group& group);

// unchanged[i] ← not 0 for the matrices of parameter i whose gradient is zero on all ranks that have a piece or a copy.
// Entries that are not finite are zero where they count as such. The devices decide, for no host to wait. One message
// along each of the axes that any of the groups communicates over, which are given in an order that all ranks share.
void find_unchanged(const std::vector<Group>& groups, const std::vector<Axis>& axes, bool nonfinite_are_zero);

// No matrix of the parameters on this device changes where the step is left out: one number there, not 0.
void leave_unchanged(const std::vector<Group>& groups, const at::Tensor& left_out);

}  // namespace torchdion::engine
