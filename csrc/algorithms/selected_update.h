// What Dion2 and Dion3 are made of (arXiv 2512.16928): of each momentum the slices of the largest norms are
// orthonormalized, and lose some of what they have.
#pragma once

#include <torchdion/layout.h>

#include "algorithms/batch.h"
#include "algorithms/newton_schulz_options.h"
#include "comm/task.h"

namespace torchdion::algorithms {

inline constexpr Option kSelectedFraction{"fraction", 0.25, kFraction,
                                          "share of the slices that is orthonormalized (arXiv 2512.16928)"};
inline constexpr Option kFeedbackDecay{"ef_decay", 0.95, kBelowOne,
                                       "μ by which slices of the momentum decay when they are chosen"};

// B = M + G;  K = the slices of B with the largest L1 norms;  U = orthonormalize(B[K]);  M = B, but M[K] = μ B[K];
// X = (1 − η λ) X, but X[K] −= η factor U. Slices are rows, or columns where the option `select` says so. Algorithms
// with the state of row_variance.h normalize the rows of U.
comm::Task<> update_selected(Batch batch, Options options);

// Momenta are summed over replicas by their owners; norms are summed and gathered over cuts, and the slots of chosen
// slices travel to owners and back.
Cost cost_of_selected(const BatchShape& shape, const Layout& layout, const Options& options);
OwnedWork work_of_selected(const BatchShape& shape, const Layout& layout, const Options& options);

}  // namespace torchdion::algorithms
