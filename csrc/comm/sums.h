// Sums over an axis: whole ones, and sums of which each rank takes a share of the work that follows.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchdion/layout.h>

#include <vector>

#include "comm/task.h"

namespace torchdion::comm {

// In which order the ranks' terms are added. `fixed`: the ranks', so that groups which sum the same terms get the same
// bits, whatever their backend and network. It sends as many elements, in two collectives.
enum class Order { any, fixed };

// tensor ← Σ over the axis of tensor, in place. Contiguous.
Task<> sum(at::Tensor tensor, Axis axis, Order order);

// Σ over the axis of stack ([count, ...], contiguous), but of its entries only this rank's share, whole ones. On an
// absent axis the stack itself.
Task<at::Tensor> sum_shares(at::Tensor stack, Axis axis, Order order, int64_t first);

// stack ← the shares of all ranks, the inverse of sum_shares().
Task<> gather_shares(at::Tensor stack, at::Tensor share, Axis axis, int64_t first);

// How many of a stack's entries are a rank's share: the first goes to rank first % size, each later one to the next
// rank. A caller of many stacks gives as `first` the number of entries before: all ranks then have as many, but for
// one. Shares lie in the stack in the order of the ranks.
int64_t share_of(int64_t count, int rank, int size, int64_t first);

// The largest of the numbers that the ranks of all these axes have. Waits for them.
double largest_of_ranks(double number, const std::vector<Axis>& axes);

}  // namespace torchdion::comm
