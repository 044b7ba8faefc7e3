// Where the pieces of a matrix lie in a job.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace c10d {
class ProcessGroup;
}

namespace torchdion {

namespace comm {
struct Line;
}

// What one kind of collective sent over an axis.
struct Traffic {
  int64_t calls = 0;
  int64_t elements = 0;  // of the full tensor on this rank, as the paper counts (arXiv 2504.05295, Table 2)
  int64_t bytes = 0;     // that this rank sends, a ring's for all-reduce, reduce-scatter and all-gather
};

// What an axis has carried. A sum that is scattered and gathered again counts its elements once, as `reduce_scatter`;
// pieces of matrices that go to their owners and come back count once, as `all_to_all`; `completion` has the calls and
// bytes of the gathering and of the way back; `agreement` those of the flags on which ranks agree before a step: which
// parameters have gradients, whether any entry overflowed.
struct AxisTraffic {
  Traffic all_reduce, reduce_scatter, all_gather, all_to_all, completion, agreement;

  // Of the full tensors, without what completes or precedes a collective: what the paper's Table 2 counts.
  int64_t elements() const {
    return all_reduce.elements + reduce_scatter.elements + all_gather.elements + all_to_all.elements;
  }
  // All that this rank sends.
  int64_t bytes() const {
    return all_reduce.bytes + reduce_scatter.bytes + all_gather.bytes + all_to_all.bytes + completion.bytes +
           agreement.bytes;
  }
};

// A contiguous part of a dimension.
struct Piece {
  int64_t begin = 0, size = 0;
  int64_t end() const { return begin + size; }  // the first index after it
};

struct AxisOptions {
  std::string name = {};         // in stats and errors; empty: the group's
  std::vector<int> chunks = {};  // a dimension is cut into chunks[0], each of these into chunks[1], …; empty: {size}
  std::vector<int> pieces = {};  // which one is that of each rank of the group; empty: they have them in their order
  bool real_when_alone = false;  // a group of one communicates too: for tests of a backend
};

// One line of ranks. A line of one rank is "absent": every collective on it is the identity and costs nothing, so that
// single-process code is the distributed code.
struct Axis {
  int rank = 0;                      // of this process on the line
  int size = 1;                      // how many ranks the line has
  std::shared_ptr<comm::Line> line;  // null when the axis is absent

  Axis() = default;
  // Throws c10::ValueError for chunks and pieces that are not those of the group's ranks.
  explicit Axis(c10::intrusive_ptr<c10d::ProcessGroup> group, const AxisOptions& options = {});

  bool absent() const { return !line; }  // no other rank is on the line
  // The part of a dimension of this length that a rank holds: chunks of ⌈length / count⌉ as torch.chunk makes them, the
  // last ones shorter or empty.
  Piece piece(int64_t length, int of_rank) const;
  Piece piece(int64_t length) const { return piece(length, rank); }  // that this rank holds
  int64_t largest_piece(int64_t length) const;                       // the size of the first piece
  const std::string& name() const;                                   // in stats and errors
  AxisTraffic traffic() const;                                       // what it has carried since it was made

  // A second group of the same ranks, in the same order, for what goes on when a step has returned, beside whatever the
  // program sends over the first: Options::delayed(true) needs one. All copies of the axis get it; it carries what one
  // optimizer has left in flight, so that another delayed one has an Axis of its own.
  // Throws c10::ValueError for a group of other ranks.
  void set_in_flight_group(c10::intrusive_ptr<c10d::ProcessGroup> group) const;
};

// What the job does to the matrices of one parameter.
struct Layout {
  Axis rows = {};                   // cuts their rows
  Axis cols = {};                   // cuts their columns
  Axis replicas = {};               // holds copies whose gradients differ: the optimizer averages them
  Axis copies = {};                 // holds copies whose gradients are averaged already: they share the work
  Axis batch = {};                  // cuts the leading dimension of a stack of matrices (experts); needs no collective
  std::vector<int64_t> sizes = {};  // of the whole parameter; empty: those of the tensor, which is whole
  // Copies lie elsewhere, on `copies` or on ranks that no axis names, whose gradients are averaged already
  // (DistributedDataParallel, a Replicate placement). Sums over rows and cols are added in rank order then, so that the
  // copies stay equal to the last bit. Known ones say so by themselves.
  bool has_averaged_copies = false;

  bool is_local() const {
    return rows.absent() && cols.absent() && replicas.absent() && copies.absent() && batch.absent();
  }
  // The layout of the transposed matrices.
  Layout t() const;
};

}  // namespace torchdion
