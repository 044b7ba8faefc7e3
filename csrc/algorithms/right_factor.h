// The right factor: R with columns of length 1, or its orthonormal factor. The update and the next Q take it of R.
#pragma once

#include "algorithms/power_iteration.h"

namespace torchdion::algorithms {

// Q = column_normalize(R), or the orthonormal factor of R, and what P moves the weights by. Where R, or that factor,
// has a column of zeros, Q keeps its own, and by way of that factor the weights do not move.
comm::Task<PowerIteration> find_right_factor(PowerIteration iteration);

// Adds the cost of R's orthonormal factor, where that is taken, in which every rank that has rows of R takes part.
void add_right_factor(Cost& cost, const BatchShape& shape, const Layout& layout, const IterationSize& size,
                      const Options& options);

}  // namespace torchdion::algorithms
