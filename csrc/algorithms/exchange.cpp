#include "algorithms/exchange.h"

#include "algorithms/whole_matrices.h"
#include "comm/sums.h"
#include "linalg/copy.h"

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
  const at::Tensor own = Q.view({-1}).narrow(0, 0, piece.numel());  // overwritten only when it has been sent
  linalg::copy_(Matrices(own.view({piece.count(), piece.rows, piece.cols})), piece);
  co_await gather_side_(Q, own, buffer, 2, axis);
}

comm::Task<> orthonormalize_sum_(at::Tensor P, Layout layout, int64_t global_rows,
                                 linalg::OrthonormalizeOptions options, std::vector<comm::Shares> owners) {
  const Axis rows = layout.rows, cols = layout.cols, replicas = layout.replicas;
  if (!rows.absent()) {
    const int64_t offset = rows.piece(global_rows).begin;
    co_await comm::sum(P, cols, options.order);
    co_await comm::sum(P, replicas, Order::any);
    co_await linalg::orthonormalize_(P, rows, offset, global_rows, options);
    co_return;
  }
  const comm::Shares on_cols = owners[0], on_replicas = owners[1];
  const at::Tensor part = co_await comm::sum_shares(P, cols, options.order, on_cols);
  const at::Tensor share = co_await comm::sum_shares(part, replicas, Order::any, on_replicas);
  co_await linalg::orthonormalize_(share, rows, 0, global_rows, options);
  co_await comm::gather_shares(part, share, replicas, on_replicas);
  co_await comm::gather_shares(P, part, cols, on_cols);
}

}  // namespace torchdion::algorithms
