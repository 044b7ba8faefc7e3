// What Muon and NorMuon are made of: the momentum, orthonormalized, of whole matrices wherever their pieces lie.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchdion/layout.h>

#include "algorithms/batch.h"
#include "comm/task.h"

namespace torchdion::algorithms {

// M = μ M + G;  returns U = orthonormalize(G + μ M), or of M: this rank's pieces ([count, rows, cols]), of any strides.
comm::Task<at::Tensor> orthonormal_momentum(Batch batch, Options options);

// Owners take whole matrices, of which a rank's pieces travel there and back; with replicas, that is a reduce-scatter
// and an all-gather, with copies the all-gather alone.
Cost cost_of_muon(const BatchShape& shape, const Layout& layout, const Options& options);
OwnedWork work_of_muon(const BatchShape& shape, const Layout& layout, const Options& options);

}  // namespace torchdion::algorithms
