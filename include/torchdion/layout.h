// Where the pieces of a matrix lie in a job.
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace torchdion {

// One line of ranks. Size 1 means "absent": every collective on it is the identity and costs nothing, so that
// single-process code is the distributed code.
struct Axis {
  int rank = 0;
  int size = 1;
  c10::intrusive_ptr<c10d::ProcessGroup> group;  // null when size is 1

  Axis() = default;
  explicit Axis(c10::intrusive_ptr<c10d::ProcessGroup> process_group)
      : rank(process_group->getRank()), size(process_group->getSize()), group(std::move(process_group)) {}
};

// What the job does to one matrix.
struct Layout {
  Axis rows;      // cuts its rows
  Axis cols;      // cuts its columns
  Axis replicas;  // holds copies of it
  Axis batch;     // cuts a stack of matrices (experts); needs no collective

  // The layout of the transposed matrix.
  Layout t() const { return Layout{cols, rows, replicas, batch}; }
};

}  // namespace torchdion
