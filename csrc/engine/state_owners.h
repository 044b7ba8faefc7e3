// Under owners="shard": which rank keeps the states of what part of a parameter that all ranks have whole, and updates
// it for all of them (arXiv 1910.02054; nanochat's DistMuon and DistAdamW).
#pragma once

#include <ATen/core/Tensor.h>
#include <torchdion/layout.h>

#include <string>
#include <vector>

#include "algorithms/all.h"
#include "comm/sums.h"

namespace torchdion::engine {

// A parameter whose states have owners among the ranks of an axis.
struct Owned {
  std::size_t group;
  std::vector<int64_t> sizes;
  const algorithms::Options* options;  // of its group
  Axis axis;
};

// Of a parameter and of states like it, what this rank keeps.
struct Part {
  Axis axis;
  comm::Shares shares;         // entries of dimension 0, of each rank
  std::vector<int64_t> sizes;  // of the whole parameter

  // "1 of 4": this rank, as state dicts of its own name it.
  std::string owner() const { return c10::str(axis.rank, " of ", axis.size); }
  Piece rows() const { return comm::own_share(axis, shares); }
  // Of states of these whole sizes: the sizes of this rank's part, the part itself, a view, and the whole of all parts.
  std::vector<int64_t> sizes_of(at::IntArrayRef state) const { return sizes_of(state, rows()); }
  int64_t begin_of(at::IntArrayRef state) const;  // its first entry of dimension 0
  at::Tensor of(const at::Tensor& state) const;
  at::Tensor gather(const at::Tensor& part, at::IntArrayRef state) const;  // waits for the other ranks

 private:
  // Of the owner of these rows.
  std::vector<int64_t> sizes_of(at::IntArrayRef state, Piece rows) const;
};

// Whether the states of a group's parameters have owners, as far as there are several ranks.
bool has_owners(const algorithms::Options& group);

// The ranks along which a layout that has_owners() shares parameters out. Throws c10::ValueError for one that cuts the
// parameter of this name.
const Axis& axis_of_owners(const Layout& layout, const std::string& name);

// How many entries of dimension 0 of each parameter every rank owns, a number having one; those of the first rank come
// first. Whole matrices have one owner each: of a stack they are shared out, of a parameter of one or several fused
// matrices there is one for all. What is updated entry by entry is cut anywhere. The costliest are given first, always
// to those who have least of the same algorithm yet; the groups one after the other, so that one which is added later
// moves nothing.
std::vector<comm::Shares> shares_of(const std::vector<Owned>& parameters);

// These entries of dimension 0 of a parameter or of a state like it; of a number itself or nothing.
at::Tensor rows_of(const at::Tensor& whole, Piece rows);

}  // namespace torchdion::engine
