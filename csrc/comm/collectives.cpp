#include "comm/collectives.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "comm/by_cpu.h"
#include "comm/failure.h"
#include "comm/line.h"
#include "torch_versions.h"

namespace torchdion::comm {

namespace {

// Tags of our messages: out of reach of those that a program counts up from 0 on the same group.
constexpr int kFirstTag = 0x40000000, kTags = 0x10000000;

void count(const Axis& axis, const char* kind, Traffic AxisTraffic::*member, int64_t elements, int64_t counted,
           int64_t sent_bytes) {
  add(axis.line->traffic.*member, {1, counted, sent_bytes});
  if (active_trace) active_trace->events.push_back({"issue", active_trace->task, axis.name(), kind, elements});
}

int64_t bytes(int64_t elements, const at::Tensor& of) { return elements * static_cast<int64_t>(of.element_size()); }

// What each rank of a ring forwards of a tensor that goes round once.
int64_t ring_bytes(const at::Tensor& tensor, const Axis& axis) {
  return bytes(tensor.numel(), tensor) * (axis.size - 1) / axis.size;
}

bool are_equal(const std::vector<int64_t>& splits) {
  return std::adjacent_find(splits.begin(), splits.end(), std::not_equal_to<>()) == splits.end();
}

// The same memory in a tensor that Python does not hold: a thread of gloo lets go of it some time after the wait, when
// the interpreter may have ended.
at::Tensor lent(const at::Tensor& tensor) { return tensor.variable_data(); }

// The tensors that a group is given: where they lie, or, where they go by the CPU, copies there.
struct Sent {
  at::Tensor output, input;
  at::Tensor target;  // target ← output, once that has arrived; undefined: the output lies where it belongs
};

Sent sent_over(const Axis& axis, const at::Tensor& output, const at::Tensor& input) {
  if (!goes_by_cpu(input, axis)) return {lent(output), lent(input), {}};
  const at::Tensor copy = where_it_can_be_sent(lent(input), axis);
  return {at::empty(output.sizes(), copy.options()), copy, lent(output)};
}

// Starts a collective with start(process group), which returns its works.
template <class Start>
Pending begin(const char* kind, const Axis& axis, const Sent& tensors, Start start) {
  throw_if_stopping();
  Works works = named(kind, axis, [&] { return start(*axis.line->group); });
  return Pending(kind, axis, std::move(works), {tensors.output, tensors.input}, tensors.target);
}

// True if exchanges of tensors like this one are made of one message per pair of ranks, every receive posted before any
// send. gloo's own all-to-all and all-gather let a send wait for its receiver's turn: over a slow link that costs up to
// as long again.
bool as_messages(const at::Tensor& tensor, const Axis& axis) {
  return tensor.is_cpu() && has_gloo(*axis.line->group, at::kCPU);
}

// Messages under way: received[k] from rank k, sent[k] to it, but nothing of this rank's own, and none without
// elements.
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

std::vector<at::Tensor> cut(const at::Tensor& tensor, const std::vector<int64_t>& splits) {
  return tensor.view({-1}).split_with_sizes(splits);
}

// A rank's own piece, which may lie where it belongs already.
void copy_own(const at::Tensor& to, const at::Tensor& from) {
  if (to.const_data_ptr() != from.const_data_ptr()) to.copy_(from);
}

// On an absent axis.
Pending copied(const at::Tensor& output, const at::Tensor& input) {
  output.copy_(input.view_as(output));
  return {};
}

// An all-to-all that has been counted. Messages write this rank's own piece only if it is asked for, or if the whole
// output is copied on to another device.
Pending begin_all_to_all(const char* kind, const at::Tensor& output, const at::Tensor& input,
                         std::vector<int64_t> received, std::vector<int64_t> sent, const Axis& axis, bool writes_own) {
  const Sent tensors = sent_over(axis, output, input);
  return begin(kind, axis, tensors, [&](c10d::ProcessGroup& group) {
    if (as_messages(tensors.input, axis)) {
      const std::vector<at::Tensor> to = cut(tensors.output, received), from = cut(tensors.input, sent);
      if (writes_own || tensors.target.defined()) copy_own(to[axis.rank], from[axis.rank]);
      return exchange(to, from, axis);
    }
    at::Tensor flat_output = tensors.output.view({-1}), flat_input = tensors.input.view({-1});
    return Works{torch_versions::all_to_all(group, flat_output, flat_input, received, sent)};
  });
}

}  // namespace

void Pending::await_resume() {
  if (!axis_.absent()) note("wait");
  for (const auto& work : works_) named(kind_, axis_, [&] { return work->wait(); });
  throw_if_stopping();
  if (target_.defined()) target_.copy_(tensors_.front());
}

Pending all_reduce(at::Tensor tensor, Axis axis) {
  if (axis.absent()) return {};
  if (tensor.numel() == 0) return Pending::nothing();
  count(axis, "all_reduce", &AxisTraffic::all_reduce, tensor.numel(), tensor.numel(), 2 * ring_bytes(tensor, axis));
  Sent sent{lent(tensor), {}, {}};
  if (goes_by_cpu(tensor, axis)) sent = {where_it_can_be_sent(sent.output, axis), {}, sent.output};
  std::vector<at::Tensor> tensors{sent.output};
  return begin("all_reduce", axis, sent, [&](c10d::ProcessGroup& group) { return Works{group.allreduce(tensors)}; });
}

Pending all_gather(at::Tensor output, at::Tensor input, std::vector<int64_t> splits, Axis axis, bool completes) {
  if (axis.absent()) return copied(output, input);
  if (output.numel() == 0) return Pending::nothing();
  count(axis, completes ? "completion" : "all_gather", completes ? &AxisTraffic::completion : &AxisTraffic::all_gather,
        output.numel(), completes ? 0 : output.numel(), bytes(input.numel(), input) * (axis.size - 1));
  const Sent sent = sent_over(axis, output, input);
  return begin("all_gather", axis, sent, [&](c10d::ProcessGroup& group) {
    // gloo cuts an output along its first dimension, as splits do: both are flat.
    at::Tensor whole = sent.output.view({-1}), own = sent.input.view({-1});
    const bool goes_as_messages = as_messages(own, axis);
    if (!goes_as_messages && are_equal(splits)) return Works{torch_versions::all_gather(group, whole, own)};
    const std::vector<at::Tensor> pieces = cut(whole, splits);
    copy_own(pieces[axis.rank], own);
    if (goes_as_messages) return exchange(pieces, std::vector(axis.size, own), axis);
    // No backend gathers unequal pieces without padding: each rank broadcasts its own.
    Works works;
    for (int rank = 0; rank < axis.size; ++rank) {
      if (splits[rank] == 0) continue;
      std::vector<at::Tensor> piece{pieces[rank]};
      c10d::BroadcastOptions options;
      options.rootRank = rank;
      works.push_back(group.broadcast(piece, options));
    }
    return works;
  });
}

Pending scatter(at::Tensor output, at::Tensor input, std::vector<int64_t> splits, Axis axis) {
  if (axis.absent()) return copied(output, input);
  if (input.numel() == 0) return Pending::nothing();
  count(axis, "reduce_scatter", &AxisTraffic::reduce_scatter, input.numel(), input.numel(),
        bytes(input.numel() - splits[axis.rank], input));
  const std::vector<int64_t> received(axis.size, splits[axis.rank]);
  return begin_all_to_all("reduce_scatter", output, input, received, splits, axis, /*writes_own=*/false);
}

Pending all_to_all(at::Tensor output, at::Tensor input, std::vector<int64_t> received, std::vector<int64_t> sent,
                   Axis axis, bool completes) {
  if (axis.absent()) return copied(output, input);
  count(axis, completes ? "completion" : "all_to_all", completes ? &AxisTraffic::completion : &AxisTraffic::all_to_all,
        input.numel(), completes ? 0 : input.numel(), bytes(input.numel() - sent[axis.rank], input));
  return begin_all_to_all("all_to_all", output, input, received, sent, axis, /*writes_own=*/true);
}

Pending reduce_scatter(at::Tensor output, at::Tensor input, Axis axis) {
  if (axis.absent()) return copied(output, input);
  if (input.numel() == 0) return Pending::nothing();
  count(axis, "reduce_scatter", &AxisTraffic::reduce_scatter, input.numel(), input.numel(), ring_bytes(input, axis));
  Sent sent = sent_over(axis, output, input);
  return begin("reduce_scatter", axis, sent, [&](c10d::ProcessGroup& group) {
    return Works{torch_versions::reduce_scatter(group, sent.output, sent.input)};
  });
}

}  // namespace torchdion::comm
