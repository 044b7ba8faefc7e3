// Collectives on what ranks hold copies of, for what is done now and then: checkpoints and checks. Each waits for the
// others; on an absent axis none does anything.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchdion/layout.h>

#include <vector>

namespace torchdion::comm {

// tensor ← the mean of all ranks', summed in FP32 or FP64.
void average(const at::Tensor& tensor, const Axis& axis);

// tensor ← that of the axis' first rank, of any dtype.
void copy_from_first(const at::Tensor& tensor, const Axis& axis);

// A hash of the bytes, whatever the strides. No copy on the way has more than 16 MiB.
int64_t digest_of(const at::Tensor& tensor);

// Whether the bytes of each tensor differ between any two ranks, told by 64-bit hashes; the same answer on every rank.
std::vector<bool> differing(const std::vector<at::Tensor>& tensors, const Axis& axis);

// Whether each of the integers (1-d, int64) differs between any two ranks.
std::vector<bool> differing_entries(const at::Tensor& integers, const Axis& axis);

// tensor ← the largest of all ranks', entry by entry.
void max_(const at::Tensor& tensor, const Axis& axis);

}  // namespace torchdion::comm
