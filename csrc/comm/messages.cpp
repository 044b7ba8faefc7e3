#include "comm/messages.h"

#include "comm/line.h"

namespace torchdion::comm {

namespace {

// Tags of our messages: out of reach of those that a program counts up from 0 on the same group.
constexpr int kFirstTag = 0x40000000, kTags = 0x10000000;

}  // namespace

bool as_messages(const at::Tensor& tensor, const Axis& axis) {
  return tensor.is_cpu() && has_gloo(*axis.line->group, at::kCPU);
}

Works exchange(const std::vector<at::Tensor>& received, const std::vector<at::Tensor>& sent, const Axis& axis) {
  c10d::ProcessGroup& group = *axis.line->group;
  const int tag = kFirstTag + static_cast<int>(axis.line->exchanges++ % kTags);
  Works works;
  // In the order of their distance, so that no rank is everyone's first.
  for (int distance = 1; distance < axis.size; ++distance) {
    const int source = (axis.rank + distance) % axis.size;
    std::vector<at::Tensor> message{received[source]};
    if (message[0].numel() > 0) works.push_back(group.recv(message, source, tag));
  }
  for (int distance = 1; distance < axis.size; ++distance) {
    const int target = (axis.rank - distance + axis.size) % axis.size;
    std::vector<at::Tensor> message{sent[target]};
    if (message[0].numel() > 0) works.push_back(group.send(message, target, tag));
  }
  return works;
}

}  // namespace torchdion::comm
