#include "algorithms/whole_matrices.h"

#include <ATen/ops/empty.h>

#include <numeric>

#include "comm/collectives.h"
#include "comm/sums.h"
#include "linalg/copy.h"

namespace torchdion::algorithms {

namespace {

// What an axis that cuts dimension `dim` of matrices carries of a stack, in elements for each of its ranks.
struct Exchange {
  std::vector<int64_t> pieces;  // to the owners: of others' matrices, this rank's pieces
  std::vector<int64_t> wholes;  // and back: of its own matrices, others' pieces
};

Exchange exchange_of(int64_t rows, int64_t cols, int64_t whole_side, int64_t dim, const Axis& axis,
                     const comm::Shares& owners) {
  Exchange exchange;
  const int64_t other_side = dim == 1 ? cols : rows;
  for (int rank = 0; rank < axis.size; ++rank) {
    exchange.pieces.push_back(owners[rank] * rows * cols);
    exchange.wholes.push_back(owners[axis.rank] * axis.piece(whole_side, rank).size * other_side);
  }
  return exchange;
}

Exchange exchange_on_cols(const BatchShape& shape, const Layout& layout) {
  return exchange_of(shape.rows, shape.cols, shape.n, 2, layout.cols, shape.owners[kOnCols]);
}

Exchange exchange_on_rows(const BatchShape& shape, const Layout& layout) {
  return exchange_of(shape.rows, shape.n, shape.m, 1, layout.rows, shape.owners[kOnRows]);
}

int64_t sum_of(const std::vector<int64_t>& numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), int64_t{0});
}

// Calls visit(part of `whole` that is a rank's piece of dimension `dim`, the same as it travels in `buffer`) for all
// ranks of the axis.
template <class Visit>
void for_each_piece(const at::Tensor& whole, const at::Tensor& buffer, int64_t dim, const Axis& axis,
                    const Visit& visit) {
  int64_t offset = 0;
  for (int rank = 0; rank < axis.size; ++rank) {
    const Piece piece = axis.piece(whole.size(dim), rank);
    const at::Tensor part = whole.narrow(dim, piece.begin, piece.size);
    if (part.numel() > 0) visit(part, buffer.narrow(0, offset, part.numel()).view(part.sizes()));
    offset += part.numel();
  }
}

void put_together_(const at::Tensor& whole, const at::Tensor& buffer, int64_t dim, const Axis& axis) {
  for_each_piece(whole, buffer, dim, axis, [](const at::Tensor& part, const at::Tensor& sent) { part.copy_(sent); });
}

// The matrices that this rank owns on the axis, with the whole of the dimension that it cuts.
comm::Task<at::Tensor> gather_owned_side(at::Tensor stack, Axis axis, int64_t dim, int64_t whole_side,
                                         comm::Shares owners) {
  if (axis.absent()) co_return stack;
  const Exchange exchange = exchange_of(stack.size(1), stack.size(2), whole_side, dim, axis, owners);
  at::Tensor buffer = at::empty({sum_of(exchange.wholes)}, stack.options());
  co_await comm::all_to_all(buffer, stack, exchange.wholes, exchange.pieces, axis);
  std::vector<int64_t> sizes = stack.sizes().vec();
  sizes[0] = owners[axis.rank];
  sizes[dim] = whole_side;
  const at::Tensor whole = at::empty(sizes, stack.options());
  put_together_(whole, buffer, dim, axis);
  co_return whole;
}

// The way back of gather_owned_side(), into the stack that it took.
comm::Task<> scatter_owned_side(at::Tensor stack, at::Tensor whole, Axis axis, int64_t dim, comm::Shares owners) {
  const Exchange exchange = exchange_of(stack.size(1), stack.size(2), whole.size(dim), dim, axis, owners);
  at::Tensor buffer = at::empty({sum_of(exchange.wholes)}, whole.options());
  for_each_piece(whole, buffer, dim, axis, [](const at::Tensor& part, const at::Tensor& sent) { sent.copy_(part); });
  co_await comm::all_to_all(stack, buffer, exchange.pieces, exchange.wholes, axis, true);
}

}  // namespace

Piece sent_to_owners(const Layout& layout, const BatchShape& shape) {
  if (!layout.replicas.absent()) return {0, shape.count};
  return comm::own_share(layout.copies, shape.owners[kOnCopies]);
}

comm::Task<at::Tensor> gather_to_owners(at::Tensor pieces, Layout layout, BatchShape shape) {
  const std::vector<comm::Shares> owners = shape.owners;
  const at::Tensor sums = co_await comm::sum_shares(pieces, layout.replicas, comm::Order::any, owners[kOnReplicas]);
  const at::Tensor share = comm::own_share(sums, layout.copies, owners[kOnCopies]);
  const at::Tensor whole = co_await gather_cuts(share, layout, shape);
  co_return whole;
}

comm::Task<at::Tensor> gather_cuts(at::Tensor share, Layout layout, BatchShape shape) {
  const std::vector<comm::Shares> owners = shape.owners;
  const Axis rows = layout.rows, cols = layout.cols;
  share = co_await gather_owned_side(share, cols, 2, shape.n, owners[kOnCols]);
  share = co_await gather_owned_side(share, rows, 1, shape.m, owners[kOnRows]);
  co_return share;
}

comm::Task<at::Tensor> scatter_from_owners(at::Tensor pieces, at::Tensor own, Layout layout, BatchShape shape) {
  if (layout.is_local()) co_return own;
  const std::vector<comm::Shares> owners = shape.owners;
  const Axis rows = layout.rows, cols = layout.cols, replicas = layout.replicas, copies = layout.copies;
  const at::Tensor of_copies = comm::own_share(pieces, replicas, owners[kOnReplicas]);
  const at::Tensor of_sides = comm::own_share(of_copies, copies, owners[kOnCopies]);
  if (!rows.absent()) {
    at::Tensor of_cols = of_sides;
    if (!cols.absent()) of_cols = at::empty({owners[kOnCols][cols.rank], shape.rows, shape.n}, own.options());
    co_await scatter_owned_side(of_cols, own, rows, 1, owners[kOnRows]);
    own = of_cols;
  }
  if (!cols.absent()) {
    co_await scatter_owned_side(of_sides, own, cols, 2, owners[kOnCols]);
  } else if (own.const_data_ptr() != of_sides.const_data_ptr()) {
    linalg::copy_(linalg::Matrices(of_sides), linalg::Matrices(own));
  }
  co_await comm::gather_shares(of_copies, of_sides, copies, owners[kOnCopies], false);
  co_await comm::gather_shares(pieces, of_copies, replicas, owners[kOnReplicas]);
  co_return pieces;
}

comm::Task<> gather_side_(at::Tensor whole, at::Tensor piece, at::Tensor buffer, int64_t dim, Axis axis) {
  const int64_t side = whole.size(dim), others = whole.numel() / side;
  std::vector<int64_t> splits;
  for (int rank = 0; rank < axis.size; ++rank) splits.push_back(others * axis.piece(side, rank).size);
  buffer = buffer.view({-1});
  co_await comm::all_gather(buffer, piece, splits, axis);
  put_together_(whole, buffer, dim, axis);
}

void add_way_to_owners(Cost& cost, const BatchShape& shape, const Layout& layout, int64_t travelling) {
  const Axis &rows = layout.rows, &cols = layout.cols, &replicas = layout.replicas;
  const int64_t piece = shape.rows * shape.cols;
  if (!replicas.absent()) {
    const int64_t others = shape.count - shape.owners[kOnReplicas][replicas.rank];
    add(cost.replicas, {shape.count * piece, others * piece * travelling});
  }
  const auto add_pieces = [&](AxisCost& on, const Exchange& exchange, const Axis& axis) {
    const int64_t all = sum_of(exchange.pieces);
    add(on, {all, (all - exchange.pieces[axis.rank]) * travelling});
  };
  if (!cols.absent()) add_pieces(cost.cols, exchange_on_cols(shape, layout), cols);
  if (!rows.absent()) add_pieces(cost.rows, exchange_on_rows(shape, layout), rows);
}

void add_way_from_owners(Cost& cost, const BatchShape& shape, const Layout& layout, int64_t travelling) {
  const Axis &rows = layout.rows, &cols = layout.cols, &replicas = layout.replicas, &copies = layout.copies;
  const int64_t piece = shape.rows * shape.cols;
  if (!replicas.absent()) {
    const int64_t own = shape.owners[kOnReplicas][replicas.rank];
    add(cost.replicas, {0, own * (replicas.size - 1) * piece * travelling});
  }
  if (!copies.absent()) {
    const comm::Shares& owners = shape.owners[kOnCopies];
    add(cost.copies, {sum_of(owners) * piece, owners[copies.rank] * piece * travelling * (copies.size - 1)});
  }
  const auto add_wholes = [&](AxisCost& on, const Exchange& exchange, const Axis& axis) {
    add(on, {0, (sum_of(exchange.wholes) - exchange.wholes[axis.rank]) * travelling});
  };
  if (!cols.absent()) add_wholes(cost.cols, exchange_on_cols(shape, layout), cols);
  if (!rows.absent()) add_wholes(cost.rows, exchange_on_rows(shape, layout), rows);
}

}  // namespace torchdion::algorithms
