// How weights move by the factors of a power iteration and by what these leave.
#pragma once

#include "algorithms/power_iteration.h"

namespace torchdion::algorithms {

// X = (1 − η λ) X − η sqrt(m/n) (P Qᵀ + a scaled residual), but for frozen matrices. B is as iterate() had
// it. Where an update is put together first, it takes the end of the workspace.
void update_weights_(const Batch& batch, const PowerIteration& iteration, const Options& options);

// The same with the signs of the residual; and M ← M − feedback · P Rᵀ, also where M is B.
void update_weights_by_signs_(const Batch& batch, const PowerIteration& iteration, const linalg::Matrices& M,
                              double feedback, const Options& options);

// Elements of the workspace that it takes, of a momentum of this dtype; and bytes that it reads and writes of all
// entries.
int64_t workspace_of_update(const BatchShape& shape, const IterationSize& size, at::ScalarType momentum,
                            const Options& options);
int64_t memory_bytes_of_update(const BatchShape& shape, const IterationSize& size, at::ScalarType momentum,
                               const Options& options);

}  // namespace torchdion::algorithms
