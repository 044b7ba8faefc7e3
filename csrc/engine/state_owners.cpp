#include "engine/state_owners.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "comm/by_cpu.h"
#include "comm/failure.h"
#include "comm/line.h"
#include "engine/matrix_form.h"
#include "words.h"

namespace torchdion::engine {

namespace {

// What may have different owners: parts of dimension 0, alike in size.
struct Units {
  int64_t count, rows;
  int64_t cost;  // of one; relative to those of the same algorithm
};

const algorithms::Algorithm& algorithm_of(const Owned& owned) {
  return algorithms::algorithm_of(static_cast<int64_t>(owned.sizes.size()), *owned.options);
}

Units units_of(const Owned& owned) {
  const std::vector<int64_t>& sizes = owned.sizes;
  const int64_t length = sizes.empty() ? 1 : sizes.front(), numel = c10::multiply_integers(sizes);
  if (numel == 0) return {1, length, 0};
  if (!algorithm_of(owned).takes_matrices()) return {length, 1, numel / length};
  const MatrixForm form = form_of(*owned.options);
  const std::vector<int64_t> matrices = matrix_sizes(sizes, form);
  const int64_t count = form.batch_dims > 0 ? length : 1;
  // Products of an m×n matrix with one of its shorter side.
  return {count, length / count, numel / count * std::min(matrices.end()[-2], matrices.back())};
}

// Gives as many units of a cost to the ranks of these loads, which grow by them: levels what they have.
comm::Shares level(std::vector<int64_t>& loads, int64_t count, int64_t cost) {
  comm::Shares given(loads.size(), 0);
  if (cost == 0) {
    given.front() = count;
    return given;
  }
  const auto given_up_to = [&](int64_t most) {
    int64_t all = 0;
    for (const int64_t load : loads) all += std::max<int64_t>(0, most - load) / cost;
    return all;
  };
  int64_t low = *std::min_element(loads.begin(), loads.end()), high = low + count * cost + 1;
  while (high - low > 1) {  // the highest level to which they suffice
    const int64_t middle = low + (high - low) / 2;
    (given_up_to(middle) <= count ? low : high) = middle;
  }
  for (std::size_t rank = 0; rank < loads.size(); ++rank) {
    given[rank] = std::max<int64_t>(0, low - loads[rank]) / cost;
    loads[rank] += given[rank] * cost;
  }
  for (int64_t left = count - c10::sum_integers(given); left > 0; --left) {
    const auto least = std::min_element(loads.begin(), loads.end());
    *least += cost;
    ++given[least - loads.begin()];
  }
  return given;
}

}  // namespace

bool has_owners(const algorithms::Options& group) { return group.has("owners") && group.text("owners") == "shard"; }

const Axis& axis_of_owners(const Layout& layout, const std::string& name) {
  TORCH_CHECK_VALUE(layout.rows.absent() && layout.cols.absent() && layout.batch.absent(), prefix(), name,
                    " must be whole on every rank under ",
                    algorithms::assigned(*algorithms::option("owners"), std::string_view("shard")),
                    ", got one that is cut; fully sharded parameters have sharded states without it");
  return layout.replicas.absent() ? layout.copies : layout.replicas;
}

std::vector<comm::Shares> shares_of(const std::vector<Owned>& parameters) {
  std::vector<Units> units;
  for (const Owned& owned : parameters) units.push_back(units_of(owned));
  std::vector<std::size_t> order(parameters.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return std::pair(parameters[a].group, -units[a].cost) < std::pair(parameters[b].group, -units[b].cost);
  });
  std::map<std::pair<const void*, const algorithms::Algorithm*>, std::vector<int64_t>> loads;
  std::vector<comm::Shares> shares(parameters.size());
  for (const std::size_t i : order) {
    const Axis& axis = parameters[i].axis;
    std::vector<int64_t>& of_ranks = loads[{axis.line.get(), &algorithm_of(parameters[i])}];
    of_ranks.resize(axis.size);
    shares[i] = level(of_ranks, units[i].count, units[i].cost);
    for (int64_t& share : shares[i]) share *= units[i].rows;
  }
  return shares;
}

at::Tensor rows_of(const at::Tensor& whole, Piece rows) {
  if (whole.dim() > 0) return whole.narrow(0, rows.begin, rows.size);
  return rows.size == 1 ? whole : whole.view({1}).narrow(0, 0, 0);
}

std::vector<int64_t> Part::sizes_of(at::IntArrayRef state, Piece rows) const {
  std::vector<int64_t> own = state.vec();
  if (own.empty()) {
    if (rows.size == 0) own = {0};
  } else if (own.front() == sizes.front()) {
    own.front() = rows.size;
  } else if (rows.size != sizes.front()) {
    own.front() = 0;  // the owner of the matrix has all
  }
  return own;
}

int64_t Part::begin_of(at::IntArrayRef state) const {
  const std::vector<int64_t> own = sizes_of(state);
  return own == state.vec() || c10::multiply_integers(own) == 0 ? 0 : rows().begin;
}

at::Tensor Part::of(const at::Tensor& state) const {
  if (state.sizes() == sizes_of(state.sizes())) return state;
  const bool is_cut = !sizes.empty() && state.size(0) == sizes.front();
  return rows_of(state, is_cut ? rows() : Piece{0, 0});
}

at::Tensor Part::gather(const at::Tensor& part, at::IntArrayRef state) const {
  if (axis.absent()) return part;
  std::vector<at::Tensor> parts;
  int64_t begin = 0;
  for (int rank = 0; rank < axis.size; ++rank) {
    const std::vector<int64_t> own_sizes = sizes_of(state, {begin, shares[rank]});
    begin += shares[rank];
    if (c10::multiply_integers(own_sizes) == 0) continue;
    const at::Tensor own = rank == axis.rank ? part.contiguous() : at::empty(own_sizes, part.options());
    // Not the tensor that Python holds: gloo's thread may let go of it when the interpreter has ended.
    std::vector<at::Tensor> sent{comm::where_it_can_be_sent(own, axis).variable_data()};
    c10d::BroadcastOptions options;
    options.rootRank = rank;
    comm::named("broadcast", axis, [&] { return axis.line->group->broadcast(sent, options)->wait(); });
    parts.push_back(sent.front().to(part.device()));
  }
  if (parts.empty()) return at::empty(state, part.options());
  return parts.size() == 1 ? parts.front().clone().view(state) : at::cat(parts);
}

}  // namespace torchdion::engine
