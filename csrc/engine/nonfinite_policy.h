// Whether a step is left out whole: all ranks decide alike.
#pragma once

#include <torchdion/layout.h>

#include <string>
#include <vector>

#include "engine/groups.h"

namespace torchdion::engine {

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

// One real number, as tensors of scalers and schedules hold it. Throws c10::ValueError for any other tensor.
void check_number(const at::Tensor& tensor, const char* what);

}  // namespace torchdion::engine
