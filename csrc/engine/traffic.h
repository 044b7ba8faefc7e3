// What a step of Dion sends, in numbers that are known before it: the formulas of the paper's Table 2 for the variants
// that are built here.
#pragma once

#include <torchdion/layout.h>
#include <torchdion/options.h>

#include <ATen/core/Tensor.h>

namespace torchdion::engine {

// Matrices that one batch updates together, oriented as the body of Algorithm 1 sees them: P is m×r.
struct MatrixBatch {
  int64_t count = 1;
  int64_t m = 0, n = 0, r = 0;  // of each whole matrix
  Orthonormalize orthonormalize = Orthonormalize::automatic;
  double rcqr_oversample = 1.25;
  at::ScalarType dtype = at::kFloat;  // that it computes in
  int64_t dealt = 0;                  // matrices to orthonormalize that were dealt out over the columns before
};

// Elements that this rank's collectives carry: a collective counts those of its full tensor, a reduce-scatter and the
// all-gather that completes it count once.
struct MatrixTraffic {
  int64_t rows = 0, cols = 0, replicas = 0;  // over the axes of the layout
};

// layout: oriented as the matrices; compressed: whether replicas exchange P and R.
MatrixTraffic traffic(const MatrixBatch& batch, const Layout& layout, bool compressed);

}  // namespace torchdion::engine
