#include "algorithms/table.h"

#include <ATen/ops/ones.h>

#include <algorithm>
#include <numeric>

#include "algorithms/batch.h"
#include "algorithms/shared.h"
#include "algorithms/whole_matrices.h"
#include "comm/collectives.h"
#include "linalg/accumulate.h"
#include "linalg/axpby.h"
#include "linalg/backend.h"
#include "linalg/copy.h"
#include "linalg/dct.h"
#include "linalg/rates.h"
#include "linalg/top_k.h"

namespace torchdion::algorithms {

using linalg::ChunkGrid;
using linalg::Matrices;

namespace {

constexpr Allowed kSide{.kind = Allowed::Kind::integer, .least = 1, .most = 1024};

constexpr Option kDemoOptions[] = {
    lr_of(0.001, "learning rate η (arXiv 2504.05295, Appendix K)"),
    {"mu", 0.999, kBelowOne, "momentum decay μ (arXiv 2411.19870)"},
    {"chunk_size", int64_t{64}, kSide, "s: matrices are transformed in chunks of s×s"},
    {"top_k", int64_t{32}, kCounting, "coefficients of a chunk that are exchanged"},
    kMomentumDtype,
};

constexpr State kDemoStates[] = {kOwnMomentum};

// Chunks of whole matrices. Where cuts fall between them each rank transforms its own; else matrices go whole to their
// owners.
struct Chunking {
  int64_t size, top_k;

  explicit Chunking(const Options& options) : size(options.integer("chunk_size")), top_k(options.integer("top_k")) {}

  int64_t kept(const ChunkGrid& grid) const { return std::min(top_k, grid.size()); }

  // Places and values that are kept of one matrix, together.
  int64_t pairs(int64_t m, int64_t n) const {
    int64_t all = 0;
    for (const ChunkGrid& grid : linalg::chunk_grids(m, n, size)) all += grid.chunks() * kept(grid);
    return 2 * all;
  }

  bool is_cut_between_chunks(const BatchShape& shape, const Layout& layout) const {
    const auto falls_between = [&](const Axis& axis, int64_t side) {
      for (int rank = 0; rank < axis.size; ++rank) {
        const Piece piece = axis.piece(side, rank);
        if (piece.begin % size != 0 && piece.size > 0) return false;
      }
      return true;
    };
    return falls_between(layout.rows, shape.m) && falls_between(layout.cols, shape.n);
  }
};

// What this rank transforms: its pieces, or the whole matrices that it owns.
struct Transformed {
  bool in_place;
  int64_t count, m, n, numel, pairs;

  Transformed(const BatchShape& shape, const Layout& layout, const Chunking& chunking)
      : in_place(chunking.is_cut_between_chunks(shape, layout)),
        count(in_place ? shape.count : shape.owners[kOnRows][layout.rows.rank]),
        m(in_place ? shape.rows : shape.m),
        n(in_place ? shape.cols : shape.n),
        numel(count * m * n),
        pairs(count * chunking.pairs(m, n)) {}
};

// The parts of the workspace.
struct Rooms {
  at::Tensor pieces, coefficients, scratch, own, all;

  Rooms(const Batch& batch, const Transformed& transformed) {
    const Axis& replicas = batch.layout.replicas;
    const std::vector<at::Tensor> parts = batch.workspace.split_with_sizes(sizes(batch.shape, transformed, replicas));
    pieces = parts[0];
    coefficients = parts[1];
    scratch = parts[2];
    own = parts[3];
    all = replicas.absent() ? own : parts[4];
  }

  // Elements of each, in their order.
  static std::vector<int64_t> sizes(const BatchShape& shape, const Transformed& transformed, const Axis& replicas) {
    const int64_t of_all = replicas.absent() ? 0 : transformed.pairs * replicas.size;
    return {transformed.in_place ? 0 : shape.numel, transformed.numel, transformed.numel, transformed.pairs, of_all};
  }
};

// The chunks of one grid, in the parts of the workspace that are theirs.
struct ChunksOfGrid {
  ChunkGrid grid;
  Matrices chunks;                   // of B
  at::Tensor coefficients, scratch;  // [chunks, rows, cols]
  int64_t begin, kept;               // of its pairs among those of a replica

  at::Tensor rows_of(const at::Tensor& entries) const { return entries.view({entries.size(0), grid.size()}); }
  at::Tensor pairs(const at::Tensor& of_replica) const {
    return of_replica.narrow(0, begin, 2 * coefficients.size(0) * kept).view({coefficients.size(0), 2, kept});
  }
};

std::vector<ChunksOfGrid> chunks_by_grid(const Matrices& B, const Rooms& rooms, const Chunking& chunking) {
  std::vector<ChunksOfGrid> parts;
  int64_t entries = 0, pairs = 0;
  for (const ChunkGrid& grid : linalg::chunk_grids(B.rows, B.cols, chunking.size)) {
    const int64_t chunks = B.count() * grid.chunks(), numel = chunks * grid.size();
    const auto room = [&](const at::Tensor& all) {
      return all.narrow(0, entries, numel).view({chunks, grid.rows, grid.cols});
    };
    parts.push_back(
        {grid, linalg::chunks_of(B, grid), room(rooms.coefficients), room(rooms.scratch), pairs, chunking.kept(grid)});
    entries += numel;
    pairs += 2 * chunks * parts.back().kept;
  }
  return parts;
}

// Coefficients ← the pairs of some replicas, each coefficient the mean of those that were sent; `scratch` counts them.
void put_mean(const ChunksOfGrid& part, const at::Tensor& of_replicas, int64_t replicas) {
  const at::Tensor sums = part.rows_of(part.coefficients).zero_();
  const at::Tensor counts = part.rows_of(part.scratch).zero_();
  const int64_t pairs = of_replicas.numel() / replicas;
  for (int64_t replica = 0; replica < replicas; ++replica) {  // in whose order all add
    const at::Tensor sent = part.pairs(of_replicas.narrow(0, replica * pairs, pairs));
    const at::Tensor places = sent.select(1, 0).to(at::kLong), values = sent.select(1, 1);
    sums.scatter_add_(1, places, values);
    if (replicas > 1) counts.scatter_add_(1, places, at::ones({1, 1}, values.options()).expand_as(values));
  }
  if (replicas > 1) sums.div_(counts.clamp_min_(1));
}

comm::Task<> demo(Batch batch, Options options) {
  const Chunking chunking(options);
  const Precision precision = precision_asked(options);
  const Layout cut = cuts_of(batch.layout);
  const BatchShape shape = batch.shape;
  const Axis replicas = batch.layout.replicas;
  const Transformed transformed(shape, cut, chunking);
  const bool in_place = transformed.in_place;
  const Rooms rooms(batch, transformed);
  linalg::upload({&batch.X, &batch.G, &batch.states.front()});
  const Matrices &X = batch.X, &M = batch.states.front();

  // B = μ M + G, where M lies
  batch.gradients.keep = options.number("mu");
  linalg::accumulate_(M, batch.G, batch.gradients);
  Matrices B = M;
  at::Tensor whole;
  at::Tensor pieces = rooms.pieces.view({in_place ? 0 : shape.count, shape.rows, shape.cols});
  if (!in_place) {
    linalg::copy_(Matrices(pieces), M);
    whole = co_await gather_to_owners(pieces, cut, shape);
    B = Matrices(whole);
  }

  // S = the k largest coefficients of DCT(B);  M = B − DCT⁻¹(S)
  const std::vector<ChunksOfGrid> all = chunks_by_grid(B, rooms, chunking);
  for (const ChunksOfGrid& part : all) {
    const linalg::ChunkTransform transform(part.grid, rooms.scratch.options(), precision);
    transform.forward(part.coefficients, part.chunks, part.scratch);
    const at::Tensor chosen = part.pairs(rooms.own);
    linalg::top_k(chosen, part.rows_of(part.coefficients));
    // A step that is left out, and a matrix that stays, neither sends nor loses anything.
    const linalg::Frozen frozen = batch.frozen.in_parts(part.grid.chunks());
    if (in_place && frozen.may_have_any()) linalg::clear_(Matrices(chosen), frozen);
    put_mean(part, rooms.own, 1);
    transform.backward(part.chunks, part.coefficients, part.scratch, -1, 1);
  }
  if (!in_place) {
    pieces = co_await scatter_from_owners(pieces, whole, cut, shape);
    linalg::copy_(M, Matrices(pieces), 1, batch.frozen);
  }

  // U = DCT⁻¹(the mean of S over replicas)
  if (!replicas.absent()) {
    const std::vector<int64_t> splits(replicas.size, rooms.own.numel());
    co_await comm::all_gather(rooms.all, rooms.own, splits, replicas);
  }
  batch.factors.shape_factor = 1;
  const at::Tensor factors = linalg::device_factors(batch.factors, batch.workspace.options());
  linalg::DirectionRule rule = batch.direction;
  rule.sign = true;

  // X = (1 − η λ) X − η sign(U)
  for (const ChunksOfGrid& part : all) {
    const linalg::ChunkTransform transform(part.grid, rooms.scratch.options(), precision);
    put_mean(part, rooms.all, replicas.size);
    if (!in_place) {
      transform.backward(part.chunks, part.coefficients, part.scratch, 1, 0);
      continue;
    }
    const Matrices U(part.coefficients);
    transform.backward(U, part.coefficients, part.scratch, 1, 0);
    rule.frozen = batch.frozen.in_parts(part.grid.chunks());
    linalg::axpby_(linalg::chunks_of(X, part.grid), U, factors, rule);
  }
  if (in_place) co_return;
  pieces = co_await scatter_from_owners(pieces, whole, cut, shape);
  linalg::axpby_(X, Matrices(pieces), factors, rule);
}

int64_t operations_of(int64_t m, int64_t n, const Chunking& chunking) {
  return 3 * linalg::dct_operations(m, n, chunking.size);
}

OwnedWork transforms(const BatchShape& shape, const Layout& layout, const Options& options) {
  const Chunking chunking(options);
  const Layout cut = cuts_of(layout);
  if (chunking.is_cut_between_chunks(shape, cut)) return {};
  return {axes_of_owners(cut), operations_of(shape.m, shape.n, chunking)};
}

Cost demo_cost(const BatchShape& shape, const Layout& layout, const Options& options) {
  const Chunking chunking(options);
  const Layout cut = cuts_of(layout);
  const Transformed transformed(shape, cut, chunking);
  const int64_t element = element_size(shape.computing);
  const int64_t momentum = element_size(shape.states.front());
  const int64_t weight = element_size(shape.parameter);
  Cost cost;
  if (!transformed.in_place) {
    add_way_to_owners(cost, shape, cut, element);
    for (int back = 0; back < 2; ++back) add_way_from_owners(cost, shape, cut, element);  // of M and of U
  }
  const Axis& replicas = layout.replicas;
  const int64_t pairs = transformed.pairs;
  if (!replicas.absent()) cost.replicas = {pairs * replicas.size, pairs * element * (replicas.size - 1)};
  cost.operations = transformed.count * operations_of(transformed.m, transformed.n, chunking);
  // M: read and written twice, read once; G: read; X: read and written; coefficients: written and read three times
  cost.memory_bytes = shape.numel * (5 * momentum + 3 * weight) + transformed.numel * 6 * element;
  const std::vector<int64_t> rooms = Rooms::sizes(shape, transformed, replicas);
  cost.workspace = std::accumulate(rooms.begin(), rooms.end(), int64_t{0});
  return cost;
}

}  // namespace

// DeMo (arXiv 2411.19870): replicas exchange the largest coefficients of the chunked cosine transforms of momenta that
// are each one's own, and step by signs.
constexpr Algorithm kDemo{
    .name = "demo",
    .title = "DeMo",
    .options = kDemoOptions,
    .states = kDemoStates,
    .cost = demo_cost,
    .update = demo,
    .owned_work = transforms,
    .decouples = always_decouples,
};

}  // namespace torchdion::algorithms
