// What a step will do, from whole shapes, layouts and options: no tensor's memory is looked at, and no rank is asked.
// Parameters may be Meta tensors, and axes of groups that cannot send.
#pragma once

#include <torchdion/layout.h>

#include <map>
#include <memory>
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

// Which rank does for others what all of them need once: each matrix has one owner.

// Gives every matrix whose work can be shared an owner: the costliest first, each to the rank that has least to do
// yet among those which share it. Ranks that share matrices decide alike, because they look at nothing but shapes
// and the axes on which there are any: all must have matrices on the same ones, as the ranks of one model do.
void assign_owners(std::vector<Alike>& alike);

int64_t ranks_of(const std::vector<Axis>& axes);

// BatchShape::owners of as many matrices as these axes have ranks, of which each owns one.
std::vector<std::vector<int64_t>> one_for_each(const std::vector<Axis>& axes);

// BatchShape::owners of the matrices [begin, end) of alike ones.
std::vector<std::vector<int64_t>> owners_of(const Alike& alike, int64_t begin, int64_t end);

// The plan of the last step, for a next one that differs from it in nothing but addresses, numbers and rates: most do.
class KnownPlan {
 public:
  // Takes the plan of a step that was found good.
  void know(const Groups& groups, std::shared_ptr<Plan> plan);
  // The plan, where these groups would be found good too and have the same one; null where they must be asked. Asks
  // whether there is memory behind their tensors.
  std::shared_ptr<const Plan> plan_of(const Groups& groups);

 private:
  // What a plan depends on beside tensors.
  struct KnownGroup {
    const algorithms::Algorithm* algorithm;
    algorithms::Options options;
    std::vector<Layout> layouts;
    std::vector<std::vector<std::vector<int64_t>>> whole_factors;
  };

  bool take_classes_of_steps(const Groups& groups);

  std::shared_ptr<Plan> plan_;  // null: none is known
  std::vector<KnownGroup> groups_;
  std::vector<int64_t> kinds_;  // of all tensors, see known_plan.cpp
  bool capturable_ = false;
  int threads_ = 0;
};

}  // namespace torchdion::engine
