// Parameters whose states have owners (owners="shard"): they travel in buckets, of which each rank updates what it
// owns.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchdion/layout.h>

#include <optional>
#include <vector>

#include "algorithms/batch.h"
#include "comm/sums.h"
#include "comm/task.h"
#include "engine/groups.h"

namespace torchdion::engine {

// Parameters of one group that travel together: to owners their gradients, which the owners sum, and from owners the
// updated weights.
struct Bucket {
  Axis axis;
  bool averages;                             // the ranks' gradients differ: owners take their mean
  std::vector<at::Tensor> X = {}, G = {};    // of the members, whole
  std::vector<comm::Shares> rows = {};       // of dimension 0 of each, that each rank owns
  comm::Shares elements = {};                // of all members, that each rank owns
  std::vector<std::size_t> parameters = {};  // the members' places in the group that was given
  std::vector<std::size_t> own = {};         // members of which this rank owns some, in their order
  std::vector<at::Tensor> own_X = {};        // of these, what is updated: a view, or a contiguous copy
  at::Tensor sums = {};                      // where this rank's are summed, halves in FP32; undefined: nowhere
};

// Groups as a step updates them on this rank.
class SharedGroups {
 public:
  SharedGroups() = default;
  // Throws c10::Error where a state is not that of this rank's part.
  explicit SharedGroups(Groups groups);

  // As they were given.
  const Groups& given() const { return shares_ ? given_ : updated_; }
  // The same where no states have owners; else of each bucket a group, of the parts that this rank owns of its members,
  // whose gradients are those of replicas, summed by update_bucket() before they are read. A part without elements is
  // left out.
  const Groups& updated() const { return updated_; }
  // That of a group of updated(); null: all ranks have all of its parameters.
  const Bucket* bucket_of(std::size_t group) const { return buckets_[group] ? &*buckets_[group] : nullptr; }
  // The group that was given, of which one of updated() has parameters.
  std::size_t given_group(std::size_t group) const { return groups_[group]; }

 private:
  void share_out(const Group& group, std::size_t index);
  void add(const Group& group, std::size_t index, const std::vector<std::size_t>& members);

  bool shares_ = false;
  Groups given_, updated_;
  std::vector<std::optional<Bucket>> buckets_;
  std::vector<std::size_t> groups_;
};

// Elements that the axis carries for one member of a bucket, as Traffic counts them, and bytes that this rank sends.
algorithms::AxisCost exchange_cost(const Bucket& bucket, std::size_t member);

// Bytes in which the gradients of what this rank owns may arrive, on a CPU, where new memory is slow at first.
int64_t room_for_gradients(const Bucket& bucket);

// Sums the gradients of a bucket at their owners, updates what this rank owns, batch after batch, and gives every rank
// the weights of the others. `room`: that of room_for_gradients(), as bytes; it may be the workspace of the batches.
// `zeroed`: entries of gradients that are not finite count as zero, and there; null: they propagate.
comm::Task<> update_bucket(const Bucket* bucket, std::vector<algorithms::Batch> batches, const Group* group,
                           at::Tensor room, int64_t* zeroed);

}  // namespace torchdion::engine
