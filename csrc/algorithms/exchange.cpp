#include "algorithms/exchange.h"

#include <ATen/ops/ones.h>

#include "comm/collectives.h"
#include "comm/sums.h"
#include "linalg/copy.h"
#include "linalg/scale.h"

namespace torchdion::algorithms {

using comm::Order;
using linalg::Matrices;

comm::Task<> average_(Matrices B, at::Tensor buffer, Axis replicas, linalg::Frozen frozen) {
  if (replicas.absent()) co_return;
  const Matrices lying = B.row_major() ? B : B.t();
  at::Tensor sum = buffer.narrow(0, 0, B.numel());
  const Matrices copies(sum.view({B.count(), lying.rows, lying.cols}));
  linalg::copy_(copies, lying);
  co_await comm::sum(sum, replicas, Order::any);
  linalg::copy_(lying, copies, 1.0 / replicas.size, frozen);
}

comm::Task<> gather_columns_(at::Tensor Q, Matrices piece, at::Tensor buffer, Axis axis) {
  const int64_t count = Q.size(0), n = Q.size(1), r = Q.size(2);
  std::vector<int64_t> splits;
  for (int rank = 0; rank < axis.size; ++rank) splits.push_back(count * n * axis.piece(r, rank).size);
  at::Tensor own = Q.view({-1}).narrow(0, 0, splits[axis.rank]);  // overwritten only when it has been sent
  linalg::copy_(Matrices(own.view({count, n, piece.cols})), piece);
  at::Tensor pieces = buffer.view({-1});
  co_await comm::all_gather(pieces, own, splits, axis);
  int64_t offset = 0;
  for (int rank = 0; rank < axis.size; ++rank) {
    const Piece columns = axis.piece(r, rank);
    Q.narrow(2, columns.begin, columns.size)
        .copy_(pieces.narrow(0, offset, splits[rank]).view({count, n, columns.size}));
    offset += splits[rank];
  }
}

comm::Task<at::Tensor> orthonormalize_sum_(at::Tensor P, Layout layout, int64_t global_rows,
                                           linalg::OrthonormalizeOptions options, std::vector<comm::Shares> owners) {
  const Axis rows = layout.rows, cols = layout.cols, replicas = layout.replicas;
  const bool needs_scale = P.scalar_type() == at::kDouble && !cols.absent();
  at::Tensor scale;
  if (!rows.absent()) {
    const int64_t offset = rows.piece(global_rows).begin;
    co_await comm::sum(P, cols, options.order);
    co_await comm::sum(P, replicas, Order::any);
    if (needs_scale) scale = at::ones({P.size(0)}, P.options());
    options.scale = scale;
    co_await linalg::orthonormalize_(P, rows, offset, global_rows, options);
    co_return scale;
  }
  const comm::Shares on_cols = owners[0], on_replicas = owners[1];
  const at::Tensor part = co_await comm::sum_shares(P, cols, options.order, on_cols);
  const at::Tensor share = co_await comm::sum_shares(part, replicas, Order::any, on_replicas);
  if (needs_scale) options.scale = at::ones({share.size(0)}, P.options());
  co_await linalg::orthonormalize_(share, rows, 0, global_rows, options);
  if (needs_scale) linalg::mark_(share, options.scale);
  co_await comm::gather_shares(part, share, replicas, on_replicas);
  co_await comm::gather_shares(P, part, cols, on_cols);
  if (needs_scale) scale = linalg::read_mark_(P);
  co_return scale;
}

}  // namespace torchdion::algorithms
