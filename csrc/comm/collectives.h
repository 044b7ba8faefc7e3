// Collectives on an Axis. Each starts its communication when it is called and hands control to the scheduler once
// before it waits. On an absent axis each returns at once: it neither communicates nor suspends. Without elements it
// suspends all the same, so that tasks take as many turns on every rank.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchdion/layout.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <coroutine>
#include <vector>

#include "comm/trace.h"

namespace torchdion::comm {

// Communications under way.
using Works = std::vector<c10::intrusive_ptr<c10d::Work>>;

// What a collective returns. Awaited: suspends its task for one turn, then waits for the communication to end and
// throws a c10::DistBackendError, which names the axis, where it failed. `tensors` keeps the memory that the
// communication reads and writes alive until then; after a failed message until those beside it are given up, which
// gloo does where their work ends. Of NCCL's communication the host only sees that it began: it is the current stream
// that waits, so memory which is freed after that is used again after that. `target`, where it is defined, is written
// then, with the first of the tensors.
class Pending {
 public:
  Pending() = default;
  Pending(const char* kind, Axis axis, Works works, std::vector<at::Tensor> tensors, at::Tensor target)
      : suspends_(true),
        kind_(kind),
        axis_(std::move(axis)),
        tensors_(std::move(tensors)),
        target_(std::move(target)),
        works_(std::move(works)) {}

  // Where there is nothing to send.
  static Pending nothing() { return Pending("", {}, {}, {}, {}); }

  bool await_ready() const noexcept { return !suspends_; }
  void await_suspend(std::coroutine_handle<>) const noexcept {}
  void await_resume();

 private:
  bool suspends_ = false;
  const char* kind_ = "";
  Axis axis_;
  std::vector<at::Tensor> tensors_;  // which end after the works
  at::Tensor target_;
  Works works_;
};

// tensor ← Σ over the axis of tensor, in place. Contiguous.
Pending all_reduce(at::Tensor tensor, Axis axis);

// output ← the inputs of all ranks one after the other; splits: the elements of each rank's. `completes`: what a
// reduce-scatter began, whose elements are counted already. Both contiguous; the input may lie at its place in the
// output.
Pending all_gather(at::Tensor output, at::Tensor input, std::vector<int64_t> splits, Axis axis, bool completes = false);

// output ← what every rank has for this one, size · splits[rank] elements, one rank after the other; input: splits[k]
// elements for each rank k. Its own piece, which lies in the input, is left unwritten where messages carry the
// others of a CPU. Counted as a reduce-scatter, of which it is the first half. Both contiguous.
Pending scatter(at::Tensor output, at::Tensor input, std::vector<int64_t> splits, Axis axis);

// output ← what every rank has for this one, one rank after the other, received[k] elements from rank k; input:
// sent[k] elements for each rank k. `completes`: what another all-to-all began, whose elements are counted already.
// Every rank of the axis calls it, also one that has nothing to send. Both contiguous.
Pending all_to_all(at::Tensor output, at::Tensor input, std::vector<int64_t> received, std::vector<int64_t> sent,
                   Axis axis, bool completes = false);

// output ← this rank's piece of Σ over the axis of input: input.numel() / size elements, added in the backend's order.
// Both contiguous; the output may be that piece of the input.
Pending reduce_scatter(at::Tensor output, at::Tensor input, Axis axis);

}  // namespace torchdion::comm
