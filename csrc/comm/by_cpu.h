// Tensors that go by the CPU: gloo reads and writes the host's memory. For tensors on a GPU it copies in some of its
// collectives, has nothing in others (messages, coalesced ones), and follows the GPU's address on the host there. So
// none of them reaches it.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchdion/layout.h>

namespace torchdion::comm {

// True if the axis' group has gloo, or nothing, for the device of the tensor, which is not the CPU, and moves what lies
// on the CPU.
bool goes_by_cpu(const at::Tensor& tensor, const Axis& axis);

// The tensor, or a copy of it where the axis' group can move it: on the CPU, or on the group's own device where that of
// NCCL alone moves nothing from the CPU.
at::Tensor where_it_can_be_sent(const at::Tensor& tensor, const Axis& axis);

}  // namespace torchdion::comm
