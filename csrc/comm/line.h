// What an Axis holds of its ranks.
#pragma once

#include <torchdion/layout.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <algorithm>

namespace torchdion::comm {

struct Line {
  c10::intrusive_ptr<c10d::ProcessGroup> group;
  AxisOptions options;  // all set
  AxisTraffic traffic;
  int64_t exchanges = 0;                 // made of messages
  std::shared_ptr<Line> in_flight = {};  // over the second group; null: there is none
  bool is_under_way = false;             // of a second one: it carries what a step has left
};

inline void add(Traffic& total, const Traffic& more) {
  total.calls += more.calls;
  total.elements += more.elements;
  total.bytes += more.bytes;
}

// True if the group has something that moves tensors on such devices: NCCL alone moves none on the CPU.
inline bool moves(const c10d::ProcessGroup& group, c10::DeviceType type) {
  const std::vector<c10::Device> devices = group.getDeviceTypes();
  return std::any_of(devices.begin(), devices.end(), [type](c10::Device device) { return device.type() == type; });
}

// True if gloo serves such devices in the group.
inline bool has_gloo(c10d::ProcessGroup& group, c10::DeviceType type) {
  return moves(group, type) && group.getBackend(type)->getBackendName() == "gloo";
}

}  // namespace torchdion::comm
