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

// How many of a stack's entries are the share of each rank of an axis. Shares lie in the stack in the order of the
// ranks.
using Shares = std::vector<int64_t>;

// As many for each rank, but for one.
Shares even_shares(int64_t count, int size);

// Where the share of this rank lies; and that share of a stack, a view.
Piece own_share(const Axis& axis, const Shares& shares);
at::Tensor own_share(const at::Tensor& stack, const Axis& axis, const Shares& shares);

// stack ← Σ over the axis of stack ([count, ...], contiguous), but of its entries only this rank's share, whole ones,
// which is what it returns: in their place, or, where `into` is defined, there, in FP32 where it is so, and the stack
// is only read. `room`: where the ranks' terms of the share may arrive, one-dimensional; undefined: in memory of its
// own. On an absent axis the stack itself.
Task<at::Tensor> sum_shares(at::Tensor stack, Axis axis, Order order, Shares shares, at::Tensor into = {},
                            at::Tensor room = {});

// stack ← the shares of all ranks, the inverse of sum_shares(); this rank's may lie in it. `completes`: sum_shares()
// made them, and has counted the elements.
Task<> gather_shares(at::Tensor stack, at::Tensor share, Axis axis, Shares shares, bool completes = true);

// The largest of the numbers that the ranks of all these axes have. Waits for them.
double largest_of_ranks(double number, const std::vector<Axis>& axes);

}  // namespace torchdion::comm
