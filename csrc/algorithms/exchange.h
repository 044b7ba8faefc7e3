// What Dion exchanges between ranks beyond a plain sum.
#pragma once

#include <torchdion/layout.h>

#include "algorithms/algorithm.h"
#include "comm/sums.h"
#include "comm/task.h"
#include "linalg/matrices.h"
#include "linalg/orthonormalize.h"
#include "linalg/step_numbers.h"

namespace torchdion::algorithms {

// B ← its mean over the axis, by way of a buffer of as many elements. Frozen matrices stay, as equal terms need not
// have their mean.
comm::Task<> average_(linalg::Matrices B, at::Tensor buffer, Axis replicas, linalg::Frozen frozen);

// Q ([count, n, r]) ← the columns of which every rank of the axis has a piece. The buffer is as large as Q.
comm::Task<> gather_columns_(at::Tensor Q, linalg::Matrices piece, at::Tensor buffer, Axis axis);

// P ([count, m, r]) ← the orthonormal factor of its sum over columns and replicas. Where whole columns of P are at
// hand, each rank orthonormalizes the matrices that it owns on columns and replicas, which costs no more communication
// than if all did all.
comm::Task<> orthonormalize_sum_(at::Tensor P, Layout layout, int64_t global_rows,
                                 linalg::OrthonormalizeOptions options, std::vector<comm::Shares> owners);

}  // namespace torchdion::algorithms
