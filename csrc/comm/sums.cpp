#include "comm/sums.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/sum.h>

#include <algorithm>
#include <functional>

#include "comm/collectives.h"
#include "comm/copies.h"

namespace torchdion::comm {

namespace {

// The elements of each rank's share of a stack.
std::vector<int64_t> splits_of(const at::Tensor& stack, const Shares& shares) {
  const int64_t count = stack.size(0), entry = count == 0 ? 0 : stack.numel() / count;
  std::vector<int64_t> splits;
  for (const int64_t share : shares) splits.push_back(share * entry);
  return splits;
}

bool is_half(const at::Tensor& tensor) { return tensor.element_size() < 4; }

// share ← Σ of the pieces, in rank order; of halves, which torch sums in FP32, rounded once.
void add_pieces(const at::Tensor& share, const at::Tensor& pieces, int size) {
  const at::Tensor rows = pieces.view({size, -1});
  if (is_half(share)) {
    at::Tensor flat = share.view({-1});
    at::sum_out(flat, rows, 0);
    return;
  }
  share.copy_(rows[0].view_as(share));
  for (int rank = 1; rank < size; ++rank) share.add_(rows[rank].view_as(share));
}

bool can_reduce_while_scattering(const at::Tensor& stack, Axis axis, Order order, const Shares& shares) {
  const bool are_equal = std::adjacent_find(shares.begin(), shares.end(), std::not_equal_to<>()) == shares.end();
  // gloo's reduce-scatter moves as much as an all-reduce, and NCCL's rounds halves at every rank.
  return order == Order::any && stack.is_cuda() && are_equal && !is_half(stack) && !moved_by_gloo(stack, axis);
}

}  // namespace

Shares even_shares(int64_t count, int size) {
  Shares shares(size, count / size);
  std::fill_n(shares.begin(), count % size, count / size + 1);
  return shares;
}

Task<at::Tensor> sum_shares(at::Tensor stack, Axis axis, Order order, Shares shares) {
  if (axis.absent()) co_return stack;
  std::vector<int64_t> sizes = stack.sizes().vec();
  sizes[0] = shares[axis.rank];
  at::Tensor share = at::empty(sizes, stack.options());
  if (can_reduce_while_scattering(stack, axis, order, shares)) {
    co_await reduce_scatter(share, stack, axis);
    co_return share;
  }
  const std::vector<int64_t> splits = splits_of(stack, shares);
  at::Tensor pieces = at::empty({axis.size * share.numel()}, stack.options());
  co_await scatter(pieces, stack, splits, axis);
  if (share.numel() > 0) add_pieces(share, pieces, axis.size);
  co_return share;
}

Task<> gather_shares(at::Tensor stack, at::Tensor share, Axis axis, Shares shares, bool completes) {
  if (axis.absent()) co_return;
  const std::vector<int64_t> splits = splits_of(stack, shares);
  co_await all_gather(stack, share, splits, axis, completes);
}

double largest_of_ranks(double number, const std::vector<Axis>& axes) {
  const at::Tensor tensor = at::full({1}, number, at::kDouble);
  for (const Axis& axis : axes) max_(tensor, axis);
  return tensor.item<double>();
}

Task<> sum(at::Tensor tensor, Axis axis, Order order) {
  if (order == Order::any) {
    co_await all_reduce(tensor, axis);
    co_return;
  }
  at::Tensor flat = tensor.view({-1});
  const Shares shares = even_shares(flat.size(0), axis.size);
  const at::Tensor share = co_await sum_shares(flat, axis, order, shares);
  co_await gather_shares(flat, share, axis, shares);
}

}  // namespace torchdion::comm
