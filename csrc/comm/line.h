// What an Axis holds of its ranks.
#pragma once

#include <torchdion/layout.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace torchdion::comm {

struct Line {
  c10::intrusive_ptr<c10d::ProcessGroup> group;
  AxisOptions options;  // all set
  AxisTraffic traffic;
  int64_t exchanges = 0;  // made of messages
};

}  // namespace torchdion::comm
