#include "algorithms/muon_update.h"

#include "algorithms/newton_schulz_options.h"
#include "algorithms/whole_matrices.h"
#include "linalg/accumulate.h"

namespace torchdion::algorithms {

using linalg::Matrices;

namespace {

// All momenta get their gradients; L, of [count, rows, cols], what this rank passes on to owners. Returns the squares
// of L (look_ahead_()), where these are whole matrices.
at::Tensor add_gradients_(const Matrices& L, const Batch& batch, const linalg::LookAheadFactors& ahead) {
  const Matrices &M = batch.states.front(), &G = batch.G;
  const Piece sent = sent_to_owners(batch.layout, batch.shape);
  const auto rule_from = [&](int64_t index) {
    linalg::GradientRule rule = batch.gradients;
    rule.frozen = batch.frozen.from(index);
    return rule;
  };
  for (const Piece& others : {Piece{0, sent.begin}, Piece{sent.end(), M.count() - sent.end()}}) {
    linalg::accumulate_(M.slice(others.begin, others.end()), G.slice(others.begin, others.end()),
                        rule_from(others.begin));
  }
  return linalg::look_ahead_(L.slice(sent.begin, sent.end()), M.slice(sent.begin, sent.end()),
                             G.slice(sent.begin, sent.end()), rule_from(sent.begin), ahead,
                             /*sums_squares=*/batch.layout.is_local());
}

}  // namespace

comm::Task<at::Tensor> orthonormal_momentum(Batch batch, Options options) {
  // M = μ M + G;  L = G + μ M, or M
  batch.gradients.keep = options.number("mu");
  const BatchShape& shape = batch.shape;
  const at::Tensor room = batch.workspace.view(orthonormalized_dtype(shape, options)).narrow(0, 0, shape.numel);
  at::Tensor L = room.view({shape.count, shape.rows, shape.cols});
  const Matrices Ls(L);
  const bool is_ahead = options.flag("nesterov");
  const at::Tensor squares = add_gradients_(
      Ls, batch, is_ahead ? linalg::LookAheadFactors{1, batch.gradients.keep} : linalg::LookAheadFactors{});

  // U = orthonormalize(Σ L), whole matrices each by its owner
  at::Tensor U = co_await gather_to_owners(L, batch.layout, batch.shape);
  U = orthonormalize_as_asked(U, options, squares);
  U = co_await scatter_from_owners(L, U, batch.layout, batch.shape);
  co_return U;
}

OwnedWork work_of_muon(const BatchShape& shape, const Layout& layout, const Options& options) {
  return {axes_of_owners(layout), newton_schulz_operations(shape.m, shape.n, shape, options)};
}

Cost cost_of_muon(const BatchShape& shape, const Layout& layout, const Options& options) {
  const int64_t travelling = element_size(orthonormalized_dtype(shape, options));
  const int64_t momentum = element_size(shape.states.front());
  const int64_t weight = element_size(shape.parameter);
  const int64_t own = shape.owners[kOnRows][layout.rows.rank], whole = shape.m * shape.n;
  Cost cost;
  add_way_to_owners(cost, shape, layout, travelling);
  add_way_from_owners(cost, shape, layout, travelling);
  cost.operations = own * work_of_muon(shape, layout, options).operations;
  // M: read and written; G: read; X: read and written; U: read; L: written and read
  const int64_t sent = sent_to_owners(layout, shape).size * shape.rows * shape.cols;
  cost.memory_bytes = shape.numel * (2 * momentum + 3 * weight + travelling) + sent * 2 * travelling;
  cost.workspace = room_for_orthonormalized(shape.numel, shape, options);
  cost.temporary_bytes = own * newton_schulz_bytes(shape.m, shape.n, shape, options);
  if (!layout.is_local()) {  // whole matrices, from pieces on their way there and back
    cost.temporary_bytes += travelling * (2 * own * whole + shape.numel);
  }
  return cost;
}

}  // namespace torchdion::algorithms
