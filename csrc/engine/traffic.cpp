#include "engine/traffic.h"

#include "comm/sums.h"
#include "linalg/orthonormalize.h"

namespace torchdion::engine {

MatrixTraffic traffic(const MatrixBatch& batch, const Layout& layout, bool compressed) {
  const int64_t m = layout.rows.piece(batch.m).size, n = layout.cols.piece(batch.n).size;
  const int64_t count = batch.count, r = batch.r;
  MatrixTraffic sent;
  if (!layout.rows.absent()) {  // Q, R and the orthonormalization
    sent.rows = count * (2 * n * r + linalg::orthonormalize_elements(r, batch.m, batch.orthonormalize,
                                                                     batch.rcqr_oversample, batch.dtype));
  }
  if (!layout.cols.absent()) sent.cols = count * (m + 1) * r;  // P and the column norms
  if (layout.replicas.absent()) return sent;
  if (!compressed) {
    sent.replicas = count * m * n;
  } else {  // P, of which this rank may have only a share, and R
    const Axis& cols = layout.cols;
    const int64_t summed = layout.rows.absent() ? comm::share_of(count, cols.rank, cols.size, batch.dealt) : count;
    sent.replicas = (summed * m + count * n) * r;
  }
  return sent;
}

}  // namespace torchdion::engine
