// What torch itself launches and allocates in a step, for recorders.
#pragma once

#include <ATen/record_function.h>
#include <c10/core/Device.h>
#include <c10/util/ThreadLocalDebugInfo.h>

namespace torchdion::linalg {

// While it lives, recorders of this thread also list what torch does on devices of a type: as a launch each operator
// that writes numbers or hands one to the host, however many kernels torch makes of it, and every allocation. Inside of
// another one it does nothing.
class RecordedOperators {
 public:
  // Throws c10::ValueError where torch's profiler is on, whose place it would take, and inside of one for another type.
  explicit RecordedOperators(c10::DeviceType type);
  RecordedOperators(const RecordedOperators&) = delete;
  ~RecordedOperators();

 private:
  at::CallbackHandle handle_ = at::INVALID_CALLBACK_HANDLE;
  std::unique_ptr<c10::DebugInfoGuard> allocations_;
};

}  // namespace torchdion::linalg
