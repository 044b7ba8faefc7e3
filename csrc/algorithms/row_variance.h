// NorMuon's normalization of the rows of an update (arXiv 2510.05491, Algorithm 1).
#pragma once

#include <ATen/core/Tensor.h>

#include "algorithms/batch.h"
#include "algorithms/shared.h"
#include "comm/task.h"
#include "linalg/matrices.h"

namespace torchdion::algorithms {

inline constexpr Option kVarianceDecay{"muon_beta2", 0.95, kBelowOne,
                                       "decay β₂ of the mean squares of rows (arXiv 2510.05491)"};
inline constexpr State kRowVariance{
    .name = "variance_neuron", .shape = StateShape::rows, .dtype_option = "variance_dtype"};

// v ← β₂ v + (1 − β₂) mean_j U_ij² of every row i, or of those that U has, and the factors 1 / (sqrt(v_i) + 1e-8)
// of these rows, multiplied so that matrices keep their Frobenius norms ([count, rows], in the computing dtype).
//
// `squares`: Σ_j U_ij² of this rank's pieces ([count, rows of U], FP64), which is written over. `source`: which row of
// U each row of v is, or −1 ([count, rows], int32); undefined: its own.
comm::Task<at::Tensor> row_factors(at::Tensor squares, linalg::Matrices v, at::Tensor source, Batch batch,
                                   Options options);

// Adds what it sends, for so many rows of U here.
void add_row_factors(Cost& cost, const BatchShape& shape, int64_t rows, const Layout& layout);

}  // namespace torchdion::algorithms
