#include "algorithms/selected_update.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <utility>

#include "algorithms/row_variance.h"
#include "algorithms/selection.h"
#include "algorithms/whole_matrices.h"
#include "linalg/accumulate.h"
#include "linalg/copy.h"
#include "linalg/rows.h"
#include "linalg/top_k.h"

namespace torchdion::algorithms {

using linalg::Matrices;

namespace {

bool selects_columns(const BatchShape& shape, const Options& options) {
  if (!options.has("select")) return false;
  const std::string_view side = options.text("select");
  return side == "auto" ? shape.n < shape.m : side == "columns";
}

// The transposed matrices, where slices are columns.
BatchShape turned(BatchShape shape, const Options& options) {
  if (!selects_columns(shape, options)) return shape;
  std::swap(shape.m, shape.n);
  std::swap(shape.rows, shape.cols);
  return shape;
}

Layout turned(const Layout& layout, const BatchShape& shape, const Options& options) {
  return selects_columns(shape, options) ? layout.t() : layout;
}

Slots slots_of(const BatchShape& turned_shape, const Layout& turned_layout, const Options& options) {
  return Slots(turned_shape, turned_layout, chosen_rows(options.number("fraction"), turned_shape.m));
}

bool normalizes(const Options& options) { return options.has(kVarianceDecay.name); }

// The parts of the workspace: the sums of momenta over replicas, in the computing dtype, and then slots.
struct Room {
  at::Tensor sums, slots;

  static int64_t of_sums(const BatchShape& shape, const Layout& layout) {
    return layout.replicas.absent() ? 0 : (shape.numel + 15) / 16 * 16;
  }

  Room(const Batch& batch, const Slots& rows, const Options& options) {
    const int64_t numel = batch.layout.replicas.absent() ? 0 : batch.states.front().numel();
    const int64_t begin = of_sums(batch.shape, batch.layout);
    sums = batch.workspace.narrow(0, 0, numel);
    const at::Tensor room = batch.workspace.narrow(0, begin, batch.workspace.numel() - begin)
                                .view(orthonormalized_dtype(batch.shape, options))
                                .narrow(0, 0, rows.numel());
    // Slots that do not travel lie as the momentum does.
    if (batch.layout.is_local() && selects_columns(batch.shape, options)) {
      slots = room.view({rows.shape.count, rows.shape.cols, rows.here}).transpose(1, 2);
    } else {
      slots = room.view({rows.shape.count, rows.here, rows.shape.cols});
    }
  }
};

// The pieces of B of which this rank passes slots on: where momenta lie, or their sums over replicas.
comm::Task<Matrices> summed(Matrices B, at::Tensor room, Layout layout, BatchShape shape) {
  const Axis replicas = layout.replicas;
  const Piece of_copies = comm::own_share(layout.copies, shape.owners[kOnCopies]);
  if (replicas.absent()) co_return B.slice(of_copies.begin, of_copies.end());
  const bool across = !B.row_major();
  const Matrices lying = across ? B.t() : B;
  at::Tensor stack = room.view({B.count(), lying.rows, lying.cols});
  linalg::copy_(Matrices(stack), lying);
  const comm::Shares owners = shape.owners[kOnReplicas];
  const at::Tensor sums = co_await comm::sum_shares(stack, replicas, comm::Order::any, owners);
  const Matrices own = Matrices(sums).slice(of_copies.begin, of_copies.end());
  co_return across ? own.t() : own;
}

// What owners have found of their matrices, to the replicas and copies of all ([count, ...]).
comm::Task<at::Tensor> of_all(at::Tensor own, Layout layout, BatchShape shape) {
  if (layout.replicas.absent() && layout.copies.absent()) co_return own;
  const Axis replicas = layout.replicas, copies = layout.copies;
  const comm::Shares on_replicas = shape.owners[kOnReplicas], on_copies = shape.owners[kOnCopies];
  std::vector<int64_t> sizes = own.sizes().vec();
  sizes.front() = shape.count;
  at::Tensor all = at::empty(sizes, own.options());
  at::Tensor of_copies = comm::own_share(all, replicas, on_replicas);
  at::Tensor here = comm::own_share(of_copies, copies, on_copies);
  here.copy_(own);
  co_await comm::gather_shares(of_copies, here, copies, on_copies, false);
  co_await comm::gather_shares(all, of_copies, replicas, on_replicas, false);
  co_return all;
}

// Of what a rank passes on to those that own whole matrices, what is of its own ones.
at::Tensor of_whole_matrices(const at::Tensor& own, const Layout& layout, const BatchShape& shape) {
  const at::Tensor on_cols = comm::own_share(own, layout.cols, shape.owners[kOnCols]);
  return comm::own_share(on_cols, layout.rows, shape.owners[kOnRows]);
}

// U = orthonormalize(B[K]) of whole matrices, from all ranks' slots ([count, all slots, n]) and back into them.
at::Tensor orthonormalized(const at::Tensor& whole, const at::Tensor& places, const Axis& rows, int64_t m,
                           const Slots& slots, const Options& options) {
  if (rows.absent()) return orthonormalize_as_asked(whole, options).contiguous();
  if (whole.size(0) == 0) return whole;
  const at::Tensor at_slots = slots_of_chosen(places, m, rows, slots.here);
  const at::Tensor chosen = at::empty({whole.size(0), slots.chosen, whole.size(2)}, whole.options());
  linalg::take_rows_(Matrices(chosen), Matrices(whole), at_slots);
  const at::Tensor U = orthonormalize_as_asked(chosen, options).contiguous();
  linalg::take_rows_(Matrices(whole), Matrices(U), chosen_of_slots(at_slots, whole.size(1)));
  return whole;
}

// Which rows move, and the slots of those that this rank orthonormalizes.
struct Selected {
  at::Tensor U;       // what the slots have become ([count, slots here, cols])
  at::Tensor source;  // of each of this rank's rows its slot, or −1 ([count, rows], int32)
};

// Of whole matrices: M ← M + G, U = orthonormalize(M[K]), M[K] ← μ M[K]. Momenta are read once for their norms and once
// for what is chosen.
Selected select_here(const Matrices& M, const Matrices& G, const at::Tensor& slots, const Slots& shape,
                     const linalg::GradientRule& gradients, const linalg::RowDecay& decay, const Options& options) {
  const at::Tensor norms = linalg::accumulate_row_sums_(M, G, gradients);
  const linalg::ChosenRows chosen = linalg::choose_rows(norms, shape.chosen);
  linalg::take_rows_(Matrices(slots), M, chosen.rows, decay);
  return {orthonormalize_as_asked(slots, options), chosen.slots};
}

// The same of pieces, each matrix by its owners.
comm::Task<Selected> select(Matrices M, Matrices G, Room room, Slots slots, Layout layout, BatchShape shape,
                            comm::Order order, linalg::GradientRule gradients, linalg::RowDecay decay,
                            Options options) {
  linalg::accumulate_(M, G, gradients);

  // K = the rows of B with the largest norms
  const Matrices own_B = co_await summed(M, room.sums, layout, shape);
  const at::Tensor own_places = co_await largest_rows(own_B, layout, shape.m, slots.chosen, order);
  const at::Tensor places = co_await of_all(own_places, layout, shape);

  // U = orthonormalize(B[K])
  const Piece rows = layout.rows.piece(shape.m);
  const at::Tensor of_copies = comm::own_share(room.slots, layout.replicas, shape.owners[kOnReplicas]);
  const at::Tensor own_slots = comm::own_share(of_copies, layout.copies, shape.owners[kOnCopies]);
  linalg::take_rows_(Matrices(own_slots), own_B, rows_of_slots(own_places, rows, slots.here));
  at::Tensor U = co_await gather_cuts(own_slots, layout, slots.shape);
  U = orthonormalized(U, of_whole_matrices(own_places, layout, shape), layout.rows, shape.m, slots, options);
  U = co_await scatter_from_owners(room.slots, U, layout, slots.shape);

  // M = B, but M[K] = μ B[K]
  linalg::decay_rows_(M, rows_of_slots(places, rows, slots.here), decay);
  co_return Selected{U, slots_of_rows(places, rows)};
}

}  // namespace

comm::Task<> update_selected(Batch batch, Options options) {
  const Layout layout = turned(batch.layout, batch.shape, options);
  const BatchShape shape = turned(batch.shape, options);
  const Slots slots = slots_of(shape, layout, options);
  const Room room(batch, slots, options);
  linalg::upload({&batch.X, &batch.G, &batch.states.front()});
  const bool across = selects_columns(batch.shape, options);
  const auto turned_if = [&](const Matrices& one) { return across ? one.t() : one; };
  const Matrices X = turned_if(batch.X), M = turned_if(batch.states.front()), G = turned_if(batch.G);
  const linalg::RowDecay decay{options.number("ef_decay"), batch.frozen};

  // B = M + G;  K = the rows of B with the largest norms;  U = orthonormalize(B[K]);  M = B, but M[K] = μ B[K]
  Selected selected;
  if (layout.is_local()) {
    selected = select_here(M, G, room.slots, slots, batch.gradients, decay, options);
  } else {
    selected = co_await select(M, G, room, slots, layout, shape, batch.order, batch.gradients, decay, options);
  }
  const Matrices U(selected.U);

  // X = (1 − η λ) X, but X[K] −= η factor U
  linalg::RowRule of_rows;
  of_rows.source = selected.source;
  if (normalizes(options)) {
    const at::Tensor squares = linalg::row_sums(U, linalg::RowSum::squares);
    of_rows.factor = co_await row_factors(squares, batch.states[1], selected.source, batch, options);
  }
  move_weights_(X, U, batch, options, of_rows);
}

OwnedWork work_of_selected(const BatchShape& of_batch, const Layout& of_pieces, const Options& options) {
  const Layout layout = turned(of_pieces, of_batch, options);
  const BatchShape shape = turned(of_batch, options);
  const int64_t k = chosen_rows(options.number("fraction"), shape.m);
  return {axes_of_owners(layout), newton_schulz_operations(k, shape.n, shape, options)};
}

Cost cost_of_selected(const BatchShape& of_batch, const Layout& of_pieces, const Options& options) {
  const Layout layout = turned(of_pieces, of_batch, options);
  const BatchShape shape = turned(of_batch, options);
  const Slots slots = slots_of(shape, layout, options);
  const int64_t element = element_size(shape.computing);
  const int64_t travelling = element_size(orthonormalized_dtype(shape, options));
  const int64_t momentum = element_size(shape.states.front());
  const int64_t weight = element_size(shape.parameter);
  constexpr int64_t kPlace = 8;
  const int64_t on_replicas = shape.owners[kOnReplicas][layout.replicas.rank];
  const int64_t on_copies = shape.owners[kOnCopies][layout.copies.rank],
                whole = shape.owners[kOnRows][layout.rows.rank];
  const int64_t piece = shape.rows * shape.cols, sent = on_copies * slots.here * shape.cols;
  Cost cost;
  if (!layout.replicas.absent()) {  // momenta, and the places of chosen rows
    cost.replicas = {shape.count * piece, (shape.count - on_replicas) * piece * element};
    add(cost.replicas, {shape.count * slots.chosen, on_replicas * slots.chosen * kPlace * (layout.replicas.size - 1)});
  }
  if (!layout.copies.absent()) {
    cost.copies = {on_replicas * slots.chosen, on_copies * slots.chosen * kPlace * (layout.copies.size - 1)};
  }
  add_choice(cost, on_copies, shape, layout);
  add_way_to_owners(cost, slots.shape, cuts_of(layout), travelling);
  add_way_from_owners(cost, slots.shape, layout, travelling);
  if (normalizes(options)) add_row_factors(cost, shape, slots.here, layout);
  cost.operations = whole * work_of_selected(of_batch, of_pieces, options).operations;
  // M: read and written by M + G, read for norms and slots; G: read; X: read and written; slots: written and read
  cost.memory_bytes = shape.numel * (2 * momentum + 3 * weight) + on_copies * piece * momentum + sent * 3 * travelling;
  // Sums over replicas, and slots.
  cost.workspace = Room::of_sums(shape, layout) + room_for_orthonormalized(slots.numel(), shape, options);
  cost.temporary_bytes = whole * newton_schulz_bytes(slots.chosen, shape.n, shape, options);
  if (!layout.is_local()) {  // whole matrices, from slots on their way there and back
    cost.temporary_bytes += travelling * (2 * whole * slots.shape.m * shape.n + slots.numel());
  }
  if (selects_columns(of_batch, options)) std::swap(cost.rows, cost.cols);
  return cost;
}

}  // namespace torchdion::algorithms
