// The best approximation of a rank, which Dion's power iteration stands in for (arXiv 2504.05295, Appendix B.1).
#pragma once

#include <ATen/core/Tensor.h>
#include <torchdion/layout.h>

#include "algorithms/algorithm.h"
#include "comm/task.h"
#include "linalg/matrices.h"

namespace torchdion::algorithms {

// P ([count, rows, r]) ← this rank's rows of the r leading left singular vectors of B, those of singular values that
// are rounding being zero. Each matrix goes whole to its owner, through `room` for count·rows·cols elements. The host
// waits for the device.
comm::Task<> left_singular_vectors_(at::Tensor P, linalg::Matrices B, at::Tensor room, Layout layout, BatchShape shape);

// What these owners do.
OwnedWork work_of_svd(const BatchShape& shape, const Layout& layout);

// Adds what goes to owners and back, and what they compute.
void add_svd(Cost& cost, const BatchShape& shape, const Layout& layout, int64_t r);

}  // namespace torchdion::algorithms
