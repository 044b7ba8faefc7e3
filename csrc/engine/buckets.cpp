#include "engine/buckets.h"

#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>

#include "engine/checks.h"
#include "engine/shapes.h"
#include "engine/state.h"
#include "engine/state_owners.h"
#include "linalg/accumulate.h"
#include "words.h"

namespace torchdion::engine {

namespace {

// Bytes of gradients that travel together: so many that latency is hidden.
constexpr int64_t kBucket = int64_t{25} << 20;

// Bytes of a parameter that travels from where it lies and not in a bucket with others, on a CPU, where a copy costs
// more than a message. Matrices share their buckets, as batches of them are updated faster.
constexpr int64_t kAlone = int64_t{1} << 20;

// Elements of one entry of dimension 0.
int64_t elements_of_row(const at::Tensor& X) { return X.dim() == 0 ? 1 : X.size(0) == 0 ? 0 : X.numel() / X.size(0); }

int64_t bytes_of(const at::Tensor& tensor) { return static_cast<int64_t>(tensor.nbytes()); }

// What parameters of one bucket have in common, with pointers that other ranks do not have.
auto kind_of(const Group& group, std::size_t i) {
  const at::Tensor &X = group.X[i], &G = group.G[i];
  const Layout& layout = group.layouts[i];
  return std::tuple(X.device().type(), X.device().index(), X.scalar_type(), G.scalar_type(), layout.replicas.line.get(),
                    layout.copies.line.get());
}

// Calls visit(member, rows of rank k) in the order in which a bucket lies in memory: of the first rank first.
template <class Visit>
void for_each_part(const Bucket& bucket, const Visit& visit) {
  std::vector<int64_t> begins(bucket.X.size(), 0);
  for (int rank = 0; rank < bucket.axis.size; ++rank) {
    for (std::size_t i = 0; i < bucket.X.size(); ++i) {
      const Piece rows{begins[i], bucket.rows[i][rank]};
      begins[i] += rows.size;
      if (rows.size > 0) visit(rank, i, rows);
    }
  }
}

bool is_in_order(const std::vector<at::Tensor>& tensors) {
  return tensors.size() == 1 && tensors.front().is_contiguous() && !tensors.front().is_neg();
}

// The members in the order of their owners, one-dimensional: in their own memory where they lie there so.
at::Tensor packed_gradients(const Bucket& bucket, int64_t* zeroed) {
  if (is_in_order(bucket.G) && !zeroed) return bucket.G.front().view({-1});
  std::vector<at::Tensor> parts;
  for_each_part(bucket,
                [&](int, std::size_t i, Piece rows) { parts.push_back(rows_of(bucket.G[i], rows).reshape({-1})); });
  const at::Tensor packed = at::cat(parts);
  if (!zeroed) return packed;
  const at::Tensor finite = at::zeros_like(packed);
  linalg::GradientRule rule;
  rule.zeroed = zeroed;
  linalg::accumulate_(linalg::Matrices(finite.view({1, -1})), linalg::Matrices(packed.view({1, -1})), rule);
  return finite;
}

// Likewise the weights, of which those of this rank alone are filled in.
at::Tensor packed_weights(const Bucket& bucket) {
  if (is_in_order(bucket.X)) return bucket.X.front().view({-1});
  const at::Tensor packed = at::empty({c10::sum_integers(bucket.elements)}, bucket.X.front().options());
  const Piece own = comm::own_share(bucket.axis, bucket.elements);
  std::vector<at::Tensor> parts;
  for (const at::Tensor& X : bucket.own_X) parts.push_back(X.view({-1}));
  at::Tensor place = packed.narrow(0, own.begin, own.size);
  if (!parts.empty()) at::cat_out(place, parts);
  return packed;
}

// Weights ← those of all ranks.
void unpack(const Bucket& bucket, const at::Tensor& packed) {
  std::vector<at::Tensor> to, from;
  const auto write = [&](const at::Tensor& part, const at::Tensor& weights) {
    if (part.is_neg()) {  // which no list of tensors may hold
      part.copy_(weights);
      return;
    }
    to.push_back(part);
    from.push_back(weights);
  };
  for (std::size_t k = 0; k < bucket.own.size(); ++k) {
    const std::size_t i = bucket.own[k];
    const at::Tensor part = rows_of(bucket.X[i], comm::own_share(bucket.axis, bucket.rows[i]));
    if (part.is_alias_of(bucket.own_X[k])) continue;  // updated where it lies
    write(part, bucket.own_X[k]);
  }
  int64_t offset = 0;
  for_each_part(bucket, [&](int rank, std::size_t i, Piece rows) {
    const at::Tensor part = rows_of(bucket.X[i], rows);
    if (rank != bucket.axis.rank && !is_in_order(bucket.X)) {
      write(part, packed.narrow(0, offset, part.numel()).view(part.sizes()));
    }
    offset += part.numel();
  });
  if (!to.empty()) at::_foreach_copy_(to, from);
}

// The matrices of a parameter's `unchanged` that lie in these rows.
at::Tensor unchanged_of(const at::Tensor& unchanged, const at::Tensor& X, Piece rows) {
  const int64_t length = X.dim() == 0 ? 1 : X.size(0), of_row = unchanged.numel() / length;
  return of_row > 0 ? unchanged.narrow(0, rows.begin * of_row, rows.size * of_row) : unchanged;  // a stack, or fused
}

}  // namespace

SharedGroups::SharedGroups(Groups groups) {
  const auto shares = [](const Group& group) { return !group.shares.empty(); };
  shares_ = std::any_of(groups.all.begin(), groups.all.end(), shares);
  if (!shares_) {
    updated_ = std::move(groups);
    buckets_.resize(updated_.all.size());
    groups_.resize(updated_.all.size());
    std::iota(groups_.begin(), groups_.end(), 0);
    return;
  }
  given_ = std::move(groups);
  updated_.capturable = given_.capturable;
  for (std::size_t g = 0; g < given_.all.size(); ++g) {
    if (shares(given_.all[g])) {
      share_out(given_.all[g], g);
      continue;
    }
    updated_.all.push_back(given_.all[g]);
    buckets_.emplace_back();
    groups_.push_back(g);
  }
}

// One kind after the other, the largest first, as owners were chosen: those which follow each other have different
// ones.
void SharedGroups::share_out(const Group& group, std::size_t index) {
  std::vector<decltype(kind_of(group, 0))> kinds;
  std::vector<std::tuple<std::size_t, int64_t, std::size_t>> sorted;
  for (std::size_t i = 0; i < group.X.size(); ++i) {
    if (group.X[i].numel() == 0) continue;
    const auto found = std::find(kinds.begin(), kinds.end(), kind_of(group, i));
    sorted.emplace_back(found - kinds.begin(), -group.X[i].numel(), i);
    if (found == kinds.end()) kinds.push_back(kind_of(group, i));
  }
  std::sort(sorted.begin(), sorted.end());
  std::vector<std::size_t> members;
  int64_t bytes = 0;
  const auto close = [&] {
    if (!members.empty()) add(group, index, members);
    members.clear();
    bytes = 0;
  };
  for (const auto& [kind, size, i] : sorted) {
    const at::Tensor& G = group.G[i];
    const int64_t alone = G.is_cpu() && !group.takes_matrices() ? kAlone : kBucket;
    if (!members.empty() && (kind_of(group, members.front()) != kind_of(group, i) || bytes + bytes_of(G) > kBucket)) {
      close();
    }
    members.push_back(i);
    bytes += bytes_of(G);
    if (bytes_of(G) >= alone) close();
  }
  close();
}

void SharedGroups::add(const Group& group, std::size_t index, const std::vector<std::size_t>& members) {
  const Layout& layout = group.layouts[members.front()];
  Bucket bucket{.axis = axis_of_owners(layout, "a parameter"), .averages = !layout.replicas.absent()};
  bucket.elements.resize(bucket.axis.size, 0);
  for (const std::size_t i : members) {
    bucket.X.push_back(group.X[i]);
    bucket.G.push_back(group.G[i]);
    bucket.rows.push_back(group.shares[i]);
    bucket.parameters.push_back(i);
    for (int rank = 0; rank < bucket.axis.size; ++rank) {
      bucket.elements[rank] += group.shares[i][rank] * elements_of_row(group.X[i]);
    }
  }
  if (bucket.averages) {
    const at::Tensor& G = bucket.G.front();
    const at::ScalarType wide = linalg::compute_dtype({G.scalar_type()});
    bucket.sums = at::empty({bucket.elements[bucket.axis.rank]}, G.options().dtype(wide));
  }
  Group own;
  own.algorithm = group.algorithm;
  own.options = group.options;
  own.multipliers = group.multipliers;
  own.states.resize(group.states.size());
  int64_t offset = 0;
  for (std::size_t member = 0; member < members.size(); ++member) {
    const std::size_t i = members[member];
    const Part part{bucket.axis, group.shares[i], group.X[i].sizes().vec()};
    const Piece rows = part.rows();
    const at::Tensor X = rows_of(group.X[i], rows);
    for (std::size_t k = 0; k < group.states.size(); ++k) {
      const algorithms::State& state = group.algorithm->states[k];
      const std::vector<int64_t> whole = whole_state_sizes(state, part.sizes, group.options);
      check_state_sizes(group.X[i], part.sizes_of(whole), group.states[k][i], title_of(state));
    }
    if (rows.size == 0) continue;
    bucket.own.push_back(member);
    bucket.own_X.push_back(X.resolve_neg().contiguous());
    own.X.push_back(bucket.own_X.back());
    own.G.push_back(bucket.averages ? bucket.sums.narrow(0, offset, X.numel()).view(X.sizes())
                                    : rows_of(group.G[i], rows));
    offset += X.numel();
    for (std::size_t k = 0; k < group.states.size(); ++k) own.states[k].push_back(group.states[k][i]);
    own.steps.push_back(group.steps[i]);
    if (!group.unchanged.empty()) own.unchanged.push_back(unchanged_of(group.unchanged[i], group.X[i], rows));
  }
  updated_.all.push_back(std::move(own));
  buckets_.push_back(std::move(bucket));
  groups_.push_back(index);
}

algorithms::AxisCost exchange_cost(const Bucket& bucket, std::size_t member) {
  const at::Tensor &X = bucket.X[member], &G = bucket.G[member];
  const int64_t all = X.numel(), own = bucket.rows[member][bucket.axis.rank] * elements_of_row(X);
  algorithms::AxisCost cost{all, own * (bucket.axis.size - 1) * static_cast<int64_t>(X.element_size())};
  if (bucket.averages) cost.bytes += (all - own) * static_cast<int64_t>(G.element_size());
  return cost;
}

int64_t room_for_gradients(const Bucket& bucket) {
  if (!bucket.averages || !bucket.sums.is_cpu()) return 0;
  return bucket.axis.size * bucket.sums.numel() * static_cast<int64_t>(bucket.G.front().element_size());
}

comm::Task<> update_bucket(const Bucket* bucket, std::vector<algorithms::Batch> batches, const Group* group,
                           at::Tensor room, int64_t* zeroed) {
  const Axis axis = bucket->axis;
  const comm::Shares elements = bucket->elements;
  if (bucket->averages) {
    const at::Tensor gradients = packed_gradients(*bucket, zeroed), sums = bucket->sums;
    const at::Tensor arriving = room.numel() > 0 ? room.view(gradients.scalar_type()) : at::Tensor();
    co_await comm::sum_shares(gradients, axis, comm::Order::any, elements, sums, arriving);
  }
  for (algorithms::Batch& batch : batches) {
    if (bucket->averages) {  // once only counts what is not finite
      batch.gradients.factor /= axis.size;
      batch.gradients.zeroed = nullptr;
    }
    const algorithms::Algorithm algorithm = *group->algorithm;
    const algorithms::Options options = group->options;
    co_await algorithms::update(algorithm, batch, options);
  }
  const at::Tensor weights = packed_weights(*bucket);
  const Piece own = comm::own_share(axis, elements);
  const at::Tensor part = weights.narrow(0, own.begin, own.size);
  const bool completes = bucket->averages;
  co_await comm::gather_shares(weights, part, axis, elements, completes);
  unpack(*bucket, weights);
}

}  // namespace torchdion::engine
