// Under Owners::shard: which rank keeps the states of what part of a parameter.
#pragma once

#include <torchdion/optimizer.h>

#include <string>
#include <unordered_map>
#include <vector>

#include "engine/state_owners.h"
#include "optim/layouts.h"

namespace torchdion::optim {

// Who owns what of a parameter.
struct Part {
  Axis axis;
  comm::Shares shares;  // entries of dimension 0, of each rank
  std::vector<int64_t> sizes;

  // "1 of 4": this rank, as state dicts of its own name it.
  std::string owner() const { return c10::str(axis.rank, " of ", axis.size); }
  Piece rows() const { return comm::own_share(axis, shares); }
  std::vector<int64_t> sizes_of(at::IntArrayRef state) const { return engine::owned_sizes(state, sizes, rows()); }
  at::Tensor of(const at::Tensor& state) const { return engine::owned_part(state, sizes, rows()); }
  // Of the parts of all ranks. Waits for them.
  at::Tensor gather(const at::Tensor& part, at::IntArrayRef state) const {
    return engine::gather_owned(part, state, sizes, axis, shares);
  }
};

// By a parameter's TensorImpl; none where all ranks have all states.
using Parts = std::unordered_map<const void*, Part>;

// Throws c10::ValueError for a parameter that is cut, or that lies on one rank where others lie on several.
Parts parts_of(const std::vector<torch::optim::OptimizerParamGroup>& groups, const Layouts& layouts);

// That of a parameter; null: all ranks have all of its states.
const Part* part_of(const Parts& parts, const at::Tensor& param);
// That of the first of them which has one.
const Part* part_of(const Parts& parts, const std::vector<at::Tensor>& params);

// The entry of a saved group that says whose parts its states are.
inline constexpr auto kOwnedBy = "owned_by";

}  // namespace torchdion::optim
