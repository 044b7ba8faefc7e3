// Whether a step is left out whole: all ranks decide alike.
#pragma once

#include <torchdion/layout.h>

#include <vector>

#include "engine/groups.h"

namespace torchdion::engine {

// What may forbid a step.
struct Doubts {
  Nonfinite nonfinite = Nonfinite::propagate;
  at::Tensor found_inf;  // of GradientScaling

  bool exist() const {
    return found_inf.defined() || nonfinite == Nonfinite::skip_step || nonfinite == Nonfinite::raise;
  }
};

struct Verdict {
  bool left_out = false;
  int64_t nonfinite = 0;  // entries of this rank's gradients that are NaN or infinite, where they were counted
};

// `gradients` are those of all groups, `axes` those of all layouts. Waits for the devices and the ranks. Throws
// c10::ValueError on all ranks where gradients that are not finite are to raise.
Verdict verdict(const Doubts& doubts, const std::vector<at::Tensor>& gradients, const std::vector<Axis>& axes);

// The same without waiting: `left_out`, one FP32 number on each device that has parameters, become 1 or 0. Returns the
// counts of entries that are NaN or infinite, one number on each device, where these are to be skipped.
std::vector<at::Tensor> decide_on_devices(const Doubts& doubts, const std::vector<at::Tensor>& gradients,
                                          const std::vector<Axis>& axes, const std::vector<at::Tensor>& left_out);

// One real number, as tensors of scalers and schedules hold it. Throws c10::ValueError for any other tensor.
void check_number(const at::Tensor& tensor, const char* what);

}  // namespace torchdion::engine
