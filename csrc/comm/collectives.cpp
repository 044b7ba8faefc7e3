#include "comm/collectives.h"

#include "comm/line.h"

namespace torchdion::comm {

Pending all_reduce(at::Tensor tensor, Axis axis) {
  if (axis.absent()) return {};
  std::vector<at::Tensor> tensors{tensor};
  c10::intrusive_ptr<c10d::Work> work = axis.line->group->allreduce(tensors);
  return Pending(std::move(work), std::move(tensors));
}

Pending all_gather(at::Tensor output, at::Tensor input, Axis axis) {
  if (axis.absent()) {
    output.copy_(input.view_as(output));
    return {};
  }
  c10::intrusive_ptr<c10d::Work> work = axis.line->group->_allgather_base(output, input);
  return Pending(std::move(work), {output, input});
}

Pending reduce_scatter(at::Tensor output, at::Tensor input, Axis axis) {
  if (axis.absent()) {
    output.copy_(input.view_as(output));
    return {};
  }
  c10::intrusive_ptr<c10d::Work> work = axis.line->group->_reduce_scatter_base(output, input);
  return Pending(std::move(work), {output, input});
}

}  // namespace torchdion::comm
