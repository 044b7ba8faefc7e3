// Matrices whose pieces lie on several ranks, put together by the one that owns them, or by all.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchdion/layout.h>

#include <vector>

#include "algorithms/algorithm.h"
#include "comm/task.h"

namespace torchdion::algorithms {

// Among whose ranks owners are, in the order in which pieces travel and in which BatchShape::owners has them: replicas
// sum while pieces are smallest, and of what copies all hold only owners send pieces on.
enum { kOnReplicas, kOnCopies, kOnCols, kOnRows };
inline std::vector<Axis> axes_of_owners(const Layout& layout) {
  return {layout.replicas, layout.copies, layout.cols, layout.rows};
}

// The cuts of a layout alone: of replicas and copies each works on its own.
inline Layout cuts_of(const Layout& layout) { return {.rows = layout.rows, .cols = layout.cols}; }

// Those of a batch whose pieces here go to owners: all of them to replicas, which sum, else what is this rank's own
// among copies. gather_to_owners() does not look at the others.
Piece sent_to_owners(const Layout& layout, const BatchShape& shape);

// The matrices that this rank owns, whole ([own, m, n]), from this rank's pieces of all ([count, rows, cols],
// contiguous, which it may write over): sums over the replicas.
comm::Task<at::Tensor> gather_to_owners(at::Tensor pieces, Layout layout, BatchShape shape);

// The part of it that follows the sums: from pieces of those that are this rank's own among replicas and copies.
comm::Task<at::Tensor> gather_cuts(at::Tensor share, Layout layout, BatchShape shape);

// The way back: pieces ← this rank's pieces of all matrices, which it returns. Of matrices that are whole on one rank
// alone it returns `own`. `own` may have any strides.
comm::Task<at::Tensor> scatter_from_owners(at::Tensor pieces, at::Tensor own, Layout layout, BatchShape shape);

// whole (contiguous) ← the pieces of dimension `dim` that all ranks of the axis have, each contiguous, by way of a
// buffer that is as large.
comm::Task<> gather_side_(at::Tensor whole, at::Tensor piece, at::Tensor buffer, int64_t dim, Axis axis);

// Adds to a cost what each of the ways to owners and back carries. `travelling`: bytes of an element. The way back
// completes sums and exchanges, whose elements count once.
void add_way_to_owners(Cost& cost, const BatchShape& shape, const Layout& layout, int64_t travelling);
void add_way_from_owners(Cost& cost, const BatchShape& shape, const Layout& layout, int64_t travelling);

}  // namespace torchdion::algorithms
