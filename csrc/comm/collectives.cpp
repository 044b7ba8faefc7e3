#include "comm/collectives.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "comm/by_cpu.h"
#include "comm/failure.h"
#include "comm/line.h"
#include "comm/stop.h"
#include "torch_versions.h"

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

// The same memory in a tensor that Python does not hold: a thread of gloo lets go of it some time after the wait, when
// the interpreter may have ended.
at::Tensor lent(const at::Tensor& tensor) { return tensor.variable_data(); }

// Starts a collective with start(process group).
template <class Start>
Pending begin(const char* kind, Axis axis, std::vector<at::Tensor> tensors, Start start) {
  throw_if_stopping();
  Works works{named(kind, axis, [&] { return start(*axis.line->group); })};
  return Pending(kind, std::move(axis), std::move(works), std::move(tensors));
}

// Likewise, made of messages: received[k] from rank k, sent[k] to it, but nothing of this rank's own.
Pending begin_exchange(const char* kind, Axis axis, std::vector<at::Tensor> received, std::vector<at::Tensor> sent) {
  throw_if_stopping();
  Works works = named(kind, axis, [&] { return exchange(received, sent, axis); });
  received.insert(received.end(), sent.begin(), sent.end());
  return Pending(kind, std::move(axis), std::move(works), std::move(received));
}

std::vector<at::Tensor> cut(const at::Tensor& tensor, const std::vector<int64_t>& splits) {
  return tensor.view({-1}).split_with_sizes(splits);
}

// A rank's own piece, which may lie where it belongs already.
void copy_own(const at::Tensor& to, const at::Tensor& from) {
  if (to.const_data_ptr() != from.const_data_ptr()) to.copy_(from);
}

// collective(output, input) on copies on the CPU, whose output then goes to where it belongs.
template <class Collective>
Pending by_cpu(const at::Tensor& output, const at::Tensor& input, const Axis& axis, Collective collective) {
  const at::Tensor sent = where_it_can_be_sent(lent(input), axis), arrived = at::empty(output.sizes(), sent.options());
  return collective(arrived, sent).then_into(lent(output), arrived);
}

}  // namespace

Pending Pending::then_into(at::Tensor tensor, at::Tensor arrived) && {
  target_ = std::move(tensor);
  arrived_ = std::move(arrived);
  return std::move(*this);
}

void Pending::await_resume() {
  if (!axis_.absent()) note("wait");
  for (const auto& work : works_) named(kind_, axis_, [&] { return work->wait(); });
  throw_if_stopping();
  if (target_.defined()) target_.copy_(arrived_);
}

Pending all_reduce(at::Tensor tensor, Axis axis) {
  if (axis.absent()) return {};
  if (tensor.numel() == 0) return Pending::nothing();
  if (goes_by_cpu(tensor, axis)) {
    const at::Tensor sent = where_it_can_be_sent(lent(tensor), axis);
    return all_reduce(sent, axis).then_into(lent(tensor), sent);
  }
  count(axis, "all_reduce", &AxisTraffic::all_reduce, tensor.numel(), tensor.numel(), 2 * ring_bytes(tensor, axis));
  std::vector<at::Tensor> tensors{lent(tensor)};
  return begin("all_reduce", axis, tensors, [&](c10d::ProcessGroup& group) { return group.allreduce(tensors); });
}

Pending all_gather(at::Tensor output, at::Tensor input, std::vector<int64_t> splits, Axis axis, bool completes) {
  if (axis.absent()) {
    output.copy_(input.view_as(output));
    return {};
  }
  if (output.numel() == 0) return Pending::nothing();
  if (goes_by_cpu(output, axis)) {
    return by_cpu(output, input, axis, [&](const at::Tensor& arrived, const at::Tensor& sent) {
      return all_gather(arrived, sent, splits, axis, completes);
    });
  }
  output = lent(output);
  input = lent(input);
  count(axis, completes ? "completion" : "all_gather", completes ? &AxisTraffic::completion : &AxisTraffic::all_gather,
        output.numel(), completes ? 0 : output.numel(), bytes(input.numel(), input) * (axis.size - 1));
  if (as_messages(input, axis)) {
    const at::Tensor own = input.view({-1});
    const std::vector<at::Tensor> received = cut(output, splits);
    copy_own(received[axis.rank], own);
    return begin_exchange("all_gather", axis, received, std::vector(axis.size, own));
  }
  // gloo cuts an output along its first dimension, as splits do: both are flat.
  at::Tensor flat = output.view({-1}), piece = input.view({-1});
  if (are_equal(splits)) {
    return begin("all_gather", axis, {output, input},
                 [&](c10d::ProcessGroup& group) { return torch_versions::all_gather(group, flat, piece); });
  }
  // No backend gathers unequal pieces without padding: each rank broadcasts its own.
  throw_if_stopping();
  const std::vector<at::Tensor> parts = cut(output, splits);
  copy_own(parts[axis.rank], piece);
  Works works;
  for (int rank = 0; rank < axis.size; ++rank) {
    if (splits[rank] == 0) continue;
    std::vector<at::Tensor> part{parts[rank]};
    c10d::BroadcastOptions options;
    options.rootRank = rank;
    works.push_back(named("all_gather", axis, [&] { return axis.line->group->broadcast(part, options); }));
  }
  return Pending("all_gather", std::move(axis), std::move(works), parts);
}

Pending scatter(at::Tensor output, at::Tensor input, std::vector<int64_t> splits, Axis axis) {
  if (axis.absent()) {
    output.copy_(input.view_as(output));
    return {};
  }
  if (input.numel() == 0) return Pending::nothing();
  if (goes_by_cpu(input, axis)) {
    return by_cpu(output, input, axis, [&](const at::Tensor& arrived, const at::Tensor& sent) {
      const std::vector<int64_t> received(axis.size, splits[axis.rank]);
      cut(arrived, received)[axis.rank].copy_(cut(sent, splits)[axis.rank]);  // which messages leave unwritten
      return scatter(arrived, sent, splits, axis);
    });
  }
  output = lent(output);
  input = lent(input);
  count(axis, "reduce_scatter", &AxisTraffic::reduce_scatter, input.numel(), input.numel(),
        bytes(input.numel() - splits[axis.rank], input));
  std::vector<int64_t> received(axis.size, splits[axis.rank]);
  if (as_messages(input, axis)) {
    return begin_exchange("reduce_scatter", axis, cut(output, received), cut(input, splits));
  }
  at::Tensor flat_output = output.view({-1}), flat_input = input.view({-1});
  return begin("reduce_scatter", axis, {output, input}, [&](c10d::ProcessGroup& group) {
    return torch_versions::all_to_all(group, flat_output, flat_input, received, splits);
  });
}

Pending all_to_all(at::Tensor output, at::Tensor input, std::vector<int64_t> received, std::vector<int64_t> sent,
                   Axis axis, bool completes) {
  if (axis.absent()) {
    output.copy_(input.view_as(output));
    return {};
  }
  if (goes_by_cpu(input, axis)) {
    return by_cpu(output, input, axis, [&](const at::Tensor& arrived, const at::Tensor& from) {
      return all_to_all(arrived, from, received, sent, axis, completes);
    });
  }
  output = lent(output);
  input = lent(input);
  count(axis, completes ? "completion" : "all_to_all", completes ? &AxisTraffic::completion : &AxisTraffic::all_to_all,
        input.numel(), completes ? 0 : input.numel(), bytes(input.numel() - sent[axis.rank], input));
  if (as_messages(input, axis)) {
    const std::vector<at::Tensor> to = cut(output, received), from = cut(input, sent);
    copy_own(to[axis.rank], from[axis.rank]);
    return begin_exchange("all_to_all", axis, to, from);
  }
  at::Tensor flat_output = output.view({-1}), flat_input = input.view({-1});
  return begin("all_to_all", axis, {output, input}, [&](c10d::ProcessGroup& group) {
    return torch_versions::all_to_all(group, flat_output, flat_input, received, sent);
  });
}

Pending reduce_scatter(at::Tensor output, at::Tensor input, Axis axis) {
  if (axis.absent()) {
    output.copy_(input.view_as(output));
    return {};
  }
  if (input.numel() == 0) return Pending::nothing();
  if (goes_by_cpu(input, axis)) {
    return by_cpu(output, input, axis, [&](const at::Tensor& arrived, const at::Tensor& sent) {
      return reduce_scatter(arrived, sent, axis);
    });
  }
  output = lent(output);
  input = lent(input);
  count(axis, "reduce_scatter", &AxisTraffic::reduce_scatter, input.numel(), input.numel(), ring_bytes(input, axis));
  return begin("reduce_scatter", axis, {output, input},
               [&](c10d::ProcessGroup& group) { return torch_versions::reduce_scatter(group, output, input); });
}

}  // namespace torchdion::comm
