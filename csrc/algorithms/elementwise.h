// What the algorithms that take elements share.
#pragma once

#include "algorithms/batch.h"

namespace torchdion::algorithms {

// Where replicas average: the batch's mean, of which lists.G are views, ← that of their own gradients.
comm::Task<> average_gradients(Batch batch);

// The lists with the rules of the batch: entries that are not finite have been dealt with where gradients were
// averaged.
linalg::ElementwiseLists lists_of(const Batch& batch);

// Gradients are summed over the replicas; parameters and states are read and written, gradients read.
Cost elementwise_cost(const BatchShape& shape, const Layout& layout, const Options& options);

}  // namespace torchdion::algorithms
