// What a step will do, from whole shapes, layouts and options: no tensor's memory is looked at, and no rank is asked.
// Parameters may be Meta tensors, and axes of groups that cannot send.
#pragma once

#include <torchdion/layout.h>

#include <map>
#include <string>
#include <vector>

#include "algorithms/all.h"
#include "engine/buckets.h"
#include "engine/groups.h"

namespace torchdion::engine {

// Parameters of a group whose matrices are alike in shape, dtypes, strides, layout and factor; of an algorithm that
// takes elements, those of one list.
struct Alike {
  std::size_t group;                 // among Groups::all
  std::vector<std::size_t> members;  // parameters of the group
  std::vector<int64_t> counts;       // of each its matrices, or 1
  algorithms::BatchShape shape;      // of all of them
  Layout layout;                     // as the algorithm's body sees the matrices
  bool transposed = false;           // the body sees the transposes: the factor is m×r in the user's orientation
  double shape_factor = 1;           // sqrt(fan-out / fan-in)
  int64_t step = 0;                  // the class of those that they take; 0: they may differ
  int64_t most = 0;                  // matrices on the rank that holds most of them
  algorithms::OwnedWork owned;       // of each matrix
  std::vector<int64_t> owners;       // of each matrix here, by its place among the ranks of owned.axes; empty: none
};

// What one task updates: matrices [begin, end) of alike ones; of lists all.
struct PlannedBatch {
  std::size_t alike;
  int64_t begin, end;
  algorithms::BatchShape shape;
  algorithms::Cost cost;
};

struct Plan {
  std::vector<Alike> alike;
  std::vector<PlannedBatch> batches;  // in the order of tasks; where ranks communicate, the same on all of them
  std::vector<Axis> axes;             // of all layouts
  std::map<std::string, int64_t> expected_traffic;  // elements, by the names of axes

  // "2 matrices of 12×20 under Dion"
  std::string description(const PlannedBatch& batch, const Groups& groups) const;
};

// Throws c10::Error where state, layout and parameters do not fit together.
Plan plan_of(const Groups& groups);

// That of groups.updated(), and what buckets carry.
Plan plan_of(const SharedGroups& groups);

}  // namespace torchdion::engine
