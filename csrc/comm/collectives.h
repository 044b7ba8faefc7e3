// Collectives on an Axis. Each starts its communication when it is called and hands control to the scheduler once
// before it waits. On an absent axis (size 1) each returns at once: it neither communicates nor suspends.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchdion/layout.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <coroutine>
#include <vector>

namespace torchdion::comm {

// What a collective returns. Awaited: suspends its task for one turn, then waits for the communication to end and
// rethrows its error. `tensors` keeps the memory that the communication reads and writes alive until then.
class Pending {
 public:
  Pending() = default;
  Pending(c10::intrusive_ptr<c10d::Work> work, std::vector<at::Tensor> tensors)
      : work_(std::move(work)), tensors_(std::move(tensors)) {}

  bool await_ready() const noexcept { return !work_; }
  void await_suspend(std::coroutine_handle<>) const noexcept {}
  void await_resume() {
    if (work_) work_->wait();
  }

 private:
  c10::intrusive_ptr<c10d::Work> work_;
  std::vector<at::Tensor> tensors_;
};

// tensor ← Σ over the axis of tensor, in place. Contiguous.
Pending all_reduce(at::Tensor tensor, Axis axis);

// output ← the inputs of all ranks one after the other: size · input.numel() elements. Both contiguous.
Pending all_gather(at::Tensor output, at::Tensor input, Axis axis);

// output ← this rank's piece of Σ over the axis of input: input.numel() / size elements. Both contiguous.
Pending reduce_scatter(at::Tensor output, at::Tensor input, Axis axis);

}  // namespace torchdion::comm
