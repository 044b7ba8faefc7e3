#include "comm/pieces.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "comm/by_cpu.h"
#include "comm/failure.h"
#include "comm/line.h"
#include "torch_versions.h"

namespace torchdion::comm {

at::Tensor piece_of(const at::Tensor& whole, int64_t dim, const Axis& axis) {
  const Piece piece = axis.piece(whole.size(dim));
  return whole.narrow(dim, piece.begin, piece.size);
}

at::Tensor gather_pieces(const at::Tensor& piece, int64_t dim, int64_t length, const Axis& axis) {
  if (axis.absent()) return piece;
  const at::Tensor own = piece.movedim(dim, 0);
  std::vector<int64_t> sizes = own.sizes().vec();
  sizes.front() = axis.largest_piece(length);
  const at::Tensor padded = at::zeros(sizes, own.options());  // no backend gathers unequal pieces
  padded.narrow(0, 0, own.size(0)).copy_(own);
  sizes.front() = length;
  const at::Tensor whole = at::empty(sizes, own.options());
  if (whole.numel() > 0) {
    sizes.front() = axis.size * padded.size(0);
    at::Tensor sent = where_it_can_be_sent(padded, axis), pieces = at::empty(sizes, sent.options());
    named("all_gather", axis, [&] { return torch_versions::all_gather(*axis.line->group, pieces, sent)->wait(); });
    for (int rank = 0; rank < axis.size; ++rank) {
      const Piece theirs = axis.piece(length, rank);
      whole.narrow(0, theirs.begin, theirs.size).copy_(pieces.narrow(0, rank * padded.size(0), theirs.size));
    }
  }
  return whole.movedim(0, dim).contiguous();
}

}  // namespace torchdion::comm
