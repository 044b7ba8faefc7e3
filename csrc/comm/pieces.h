// Pieces of tensors that an axis cuts along a dimension, for what is done now and then: checkpoints. On an absent axis
// a piece is the whole.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchdion/layout.h>

namespace torchdion::comm {

// This rank's piece, a view.
at::Tensor piece_of(const at::Tensor& whole, int64_t dim, const Axis& axis);

// The whole of `length` entries along the dimension, of which every rank gives its piece. Waits for the others; what it
// sends is not counted, as it is no part of a step.
at::Tensor gather_pieces(const at::Tensor& piece, int64_t dim, int64_t length, const Axis& axis);

}  // namespace torchdion::comm
