#include "comm/by_cpu.h"

#include "comm/line.h"

namespace torchdion::comm {

bool goes_by_cpu(const at::Tensor& tensor, const Axis& axis) {
  c10d::ProcessGroup& group = *axis.line->group;
  const c10::DeviceType type = tensor.device().type();
  if (type == at::kCPU || !moves(group, at::kCPU)) return false;
  return !moves(group, type) || has_gloo(group, type);
}

at::Tensor where_it_can_be_sent(const at::Tensor& tensor, const Axis& axis) {
  if (goes_by_cpu(tensor, axis)) return tensor.to(at::kCPU);
  const c10d::ProcessGroup& group = *axis.line->group;
  const std::vector<c10::Device> devices = group.getDeviceTypes();
  if (devices.empty() || moves(group, tensor.device().type())) return tensor;
  // The device that init_process_group() was given for this rank, or else its current one.
  return tensor.to(group.getBoundDeviceId().value_or(devices.front()));
}

}  // namespace torchdion::comm
