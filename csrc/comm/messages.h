// Exchanges made of one message per pair of ranks, every receive posted before any send. gloo's own all-to-all and
// all-gather let a send wait for its receiver's turn: over a slow link that costs up to as long again.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchdion/layout.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <vector>

namespace torchdion::comm {

// Communications under way.
using Works = std::vector<c10::intrusive_ptr<c10d::Work>>;

// True if exchanges of tensors like this one are made of messages: on the CPU, where gloo moves them.
bool as_messages(const at::Tensor& tensor, const Axis& axis);

// received[k] ← what rank k has for this one, sent[k] → rank k, for all k but this rank's own. One-dimensional
// contiguous tensors; those without elements are not sent. What it returns is to be waited for.
Works exchange(const std::vector<at::Tensor>& received, const std::vector<at::Tensor>& sent, const Axis& axis);

}  // namespace torchdion::comm
