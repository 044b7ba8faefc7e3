#include "comm/collectives.h"

#include <algorithm>

#include "comm/line.h"

namespace torchdion::comm {

namespace {

void count(Axis axis, const char* kind, Traffic AxisTraffic::*member, int64_t elements, int64_t counted,
           int64_t sent_bytes) {
  Traffic& traffic = axis.line->traffic.*member;
  ++traffic.calls;
  traffic.elements += counted;
  traffic.bytes += sent_bytes;
  if (active_trace) active_trace->events.push_back({"issue", active_trace->task, axis.name(), kind, elements});
}

int64_t bytes(int64_t elements, const at::Tensor& of) { return elements * static_cast<int64_t>(of.element_size()); }

// What each rank of a ring forwards of a tensor that goes round once.
int64_t ring_bytes(const at::Tensor& tensor, Axis axis) {
  return bytes(tensor.numel(), tensor) * (axis.size - 1) / axis.size;
}

bool are_equal(const std::vector<int64_t>& splits) {
  return std::adjacent_find(splits.begin(), splits.end(), std::not_equal_to<>()) == splits.end();
}

Pending nothing_to_send() { return Pending(nullptr, {}); }

}  // namespace

Pending all_reduce(at::Tensor tensor, Axis axis) {
  if (axis.absent()) return {};
  if (tensor.numel() == 0) return nothing_to_send();
  count(axis, "all_reduce", &AxisTraffic::all_reduce, tensor.numel(), tensor.numel(), 2 * ring_bytes(tensor, axis));
  std::vector<at::Tensor> tensors{tensor};
  c10::intrusive_ptr<c10d::Work> work = axis.line->group->allreduce(tensors);
  return Pending(std::move(work), std::move(tensors));
}

Pending all_gather(at::Tensor output, at::Tensor input, std::vector<int64_t> splits, Axis axis, bool completes) {
  if (axis.absent()) {
    output.copy_(input.view_as(output));
    return {};
  }
  if (output.numel() == 0) return nothing_to_send();
  count(axis, completes ? "completion" : "all_gather", completes ? &AxisTraffic::completion : &AxisTraffic::all_gather,
        output.numel(), completes ? 0 : output.numel(), bytes(input.numel(), input) * (axis.size - 1));
  if (are_equal(splits)) {
    c10::intrusive_ptr<c10d::Work> work = axis.line->group->_allgather_base(output, input);
    return Pending(std::move(work), {output, input});
  }
  // No backend gathers unequal pieces without padding; an all-to-all of copies does.
  // Splits count along the first dimension, so both are flat.
  at::Tensor flat = output.view({-1}), copies = input.reshape({-1}).repeat({axis.size});
  std::vector<int64_t> sent(axis.size, input.numel());
  c10::intrusive_ptr<c10d::Work> work = axis.line->group->alltoall_base(flat, copies, splits, sent);
  return Pending(std::move(work), {output, copies});
}

Pending scatter(at::Tensor output, at::Tensor input, std::vector<int64_t> splits, Axis axis) {
  if (axis.absent()) {
    output.copy_(input.view_as(output));
    return {};
  }
  if (input.numel() == 0) return nothing_to_send();
  count(axis, "reduce_scatter", &AxisTraffic::reduce_scatter, input.numel(), input.numel(),
        bytes(input.numel() - splits[axis.rank], input));
  std::vector<int64_t> received(axis.size, splits[axis.rank]);
  at::Tensor flat_output = output.view({-1}), flat_input = input.view({-1});
  c10::intrusive_ptr<c10d::Work> work = axis.line->group->alltoall_base(flat_output, flat_input, received, splits);
  return Pending(std::move(work), {output, input});
}

Pending reduce_scatter(at::Tensor output, at::Tensor input, Axis axis) {
  if (axis.absent()) {
    output.copy_(input.view_as(output));
    return {};
  }
  if (input.numel() == 0) return nothing_to_send();
  count(axis, "reduce_scatter", &AxisTraffic::reduce_scatter, input.numel(), input.numel(), ring_bytes(input, axis));
  c10::intrusive_ptr<c10d::Work> work = axis.line->group->_reduce_scatter_base(output, input);
  return Pending(std::move(work), {output, input});
}

}  // namespace torchdion::comm
