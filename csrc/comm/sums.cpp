#include "comm/sums.h"

#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/sum.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "comm/blocking.h"
#include "comm/by_cpu.h"
#include "comm/collectives.h"

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

// sum ← Σ of the terms in their order, of halves in FP32, rounded at most once. `sum` may be one of them.
template <class S, class T>
void add_on_cpu(S* sum, const std::vector<const T*>& terms, int64_t numel) {
  using Wide = at::opmath_type<T>;
  constexpr int64_t kBlock = 512, kBlocksPerThread = 64;
  at::parallel_for(0, (numel + kBlock - 1) / kBlock, kBlocksPerThread, [&](int64_t first, int64_t end) {
    Wide wide[kBlock];
    for (int64_t begin = first * kBlock; begin < std::min(end * kBlock, numel); begin += kBlock) {
      const int64_t count = std::min(kBlock, numel - begin);
      for (int64_t j = 0; j < count; ++j) wide[j] = static_cast<Wide>(terms.front()[begin + j]);
      for (std::size_t k = 1; k < terms.size(); ++k) {
        const T* term = terms[k] + begin;
#pragma GCC unroll 1
        for (int64_t j = 0; j < count; ++j) wide[j] += static_cast<Wide>(term[j]);
      }
      for (int64_t j = 0; j < count; ++j) sum[begin + j] = static_cast<S>(wide[j]);
    }
  });
}

// sum ← Σ of all ranks' pieces, in rank order; of halves on a GPU in that of torch, the same for equal shapes; it may
// be FP32 of halves. On a CPU `own`, this rank's, need not be among `pieces`, and may be where the sum is to be.
void add_pieces(const at::Tensor& sum, const at::Tensor& own, const at::Tensor& pieces, const Axis& axis) {
  const at::Tensor rows = pieces.view({axis.size, -1});
  if (sum.is_cpu()) {
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, own.scalar_type(), "torchdion::add_pieces", [&] {
      std::vector<const scalar_t*> terms;
      for (int rank = 0; rank < axis.size; ++rank) terms.push_back(rows[rank].const_data_ptr<scalar_t>());
      terms[axis.rank] = own.const_data_ptr<scalar_t>();
      if (sum.scalar_type() == own.scalar_type()) {
        add_on_cpu(sum.data_ptr<scalar_t>(), terms, sum.numel());
      } else {
        add_on_cpu(sum.data_ptr<at::opmath_type<scalar_t>>(), terms, sum.numel());
      }
    });
  } else if (is_half(own)) {  // torch sums them in FP32
    at::Tensor flat = sum.view({-1});
    at::sum_out(flat, rows, 0);
  } else {
    sum.copy_(rows[0].view_as(sum));
    for (int rank = 1; rank < axis.size; ++rank) sum.add_(rows[rank].view_as(sum));
  }
}

bool can_reduce_while_scattering(const at::Tensor& stack, Axis axis, Order order, const Shares& shares) {
  const bool are_equal = std::adjacent_find(shares.begin(), shares.end(), std::not_equal_to<>()) == shares.end();
  // gloo's reduce-scatter moves as much as an all-reduce, and NCCL's rounds halves at every rank.
  return order == Order::any && stack.is_cuda() && are_equal && !is_half(stack) && !goes_by_cpu(stack, axis);
}

}  // namespace

Shares even_shares(int64_t count, int size) {
  Shares shares(size, count / size);
  std::fill_n(shares.begin(), count % size, count / size + 1);
  return shares;
}

Piece own_share(const Axis& axis, const Shares& shares) {
  return {std::accumulate(shares.begin(), shares.begin() + axis.rank, int64_t{0}), shares[axis.rank]};
}

at::Tensor own_share(const at::Tensor& stack, const Axis& axis, const Shares& shares) {
  const Piece own = own_share(axis, shares);
  return stack.narrow(0, own.begin, own.size);
}

Task<at::Tensor> sum_shares(at::Tensor stack, Axis axis, Order order, Shares shares, at::Tensor into, at::Tensor room) {
  if (axis.absent()) co_return stack;
  const at::Tensor share = own_share(stack, axis, shares);
  at::Tensor sum = into.defined() ? into : share;
  if (can_reduce_while_scattering(stack, axis, order, shares)) {
    co_await reduce_scatter(sum, stack, axis);
    co_return sum;
  }
  const std::vector<int64_t> splits = splits_of(stack, shares);
  const int64_t arriving = axis.size * share.numel();
  at::Tensor pieces = room.defined() ? room.narrow(0, 0, arriving) : at::empty({arriving}, stack.options());
  co_await scatter(pieces, stack, splits, axis);
  if (share.numel() > 0) add_pieces(sum, share, pieces, axis);
  co_return sum;
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
