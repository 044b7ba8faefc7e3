// Collectives that wait for the other ranks, for what is done now and then: checkpoints and checks. On an absent axis a
// piece is the whole, and none does anything.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchdion/layout.h>

#include <string_view>
#include <vector>

namespace torchdion::comm {

// tensor ← the mean of all ranks', summed in FP32 or FP64.
void average(const at::Tensor& tensor, const Axis& axis);

// tensor ← that of the axis' first rank, of any dtype.
void copy_from_first(const at::Tensor& tensor, const Axis& axis);

// A hash of bytes, and of those of a tensor, whatever its strides. Other processes, machines and libraries compute the
// same. No copy on the way has more than 16 MiB.
int64_t digest(std::string_view bytes);
int64_t digest_of(const at::Tensor& tensor);

// Whether the bytes of each tensor differ between any two ranks, told by 64-bit hashes; the same answer on every rank.
std::vector<bool> differing(const std::vector<at::Tensor>& tensors, const Axis& axis);

// Whether each of the integers (1-d, int64) differs between any two ranks.
std::vector<bool> differing_entries(const at::Tensor& integers, const Axis& axis);

// tensor ← the largest of all ranks', entry by entry.
void max_(const at::Tensor& tensor, const Axis& axis);

// This rank's piece of a tensor that the axis cuts along a dimension: a view.
at::Tensor piece_of(const at::Tensor& whole, int64_t dim, const Axis& axis);

// The whole of `length` entries along the dimension, of which every rank gives its piece. What it sends is not counted,
// as it is no part of a step.
at::Tensor gather_pieces(const at::Tensor& piece, int64_t dim, int64_t length, const Axis& axis);

}  // namespace torchdion::comm
