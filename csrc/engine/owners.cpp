// Which rank does for others what all of them need once.
#include <algorithm>
#include <map>
#include <numeric>

#include "engine/plan.h"

namespace torchdion::engine {

namespace {

// What the ranks of some axes have been given to do. Matrices of which the same axes cut other sides count together.
class Loads {
 public:
  // Gives each matrix to the rank that has least to do: its place among those of the axes, the last of which counts
  // fastest.
  void give(Alike& alike) {
    const std::vector<Axis>& axes = alike.owned.axes;
    Grid& grid = grid_of(axes, alike.layout.batch);  // also where there is no matrix, as other ranks may have some
    const auto ranks = static_cast<int64_t>(grid.loads.size());
    for (int64_t i = 0; i < alike.shape.count; ++i) {
      const auto least = std::min_element(grid.loads.begin(), grid.loads.end());
      *least += alike.owned.operations;
      alike.owners.push_back(place_of((least - grid.loads.begin() + grid.first) % ranks, grid, axes));
    }
  }

 private:
  using Lines = std::vector<const comm::Line*>;

  struct Grid {
    std::vector<Axis> axes;      // in the order in which the first matrix had them, the same on all ranks
    std::vector<int64_t> loads;  // of the ranks, counted along the first axis first, from the one that begins
    int64_t first = 0;           // which is another one for every grid
  };

  // An axis that cuts stacks is part of the key: its ranks hold different numbers of matrices.
  Grid& grid_of(const std::vector<Axis>& axes, const Axis& batch) {
    Lines key;
    for (const Axis& axis : axes) key.push_back(axis.line.get());
    std::sort(key.begin(), key.end());
    key.push_back(batch.line.get());
    const auto [found, is_new] = grids_.try_emplace(std::move(key));
    if (is_new) found->second = {axes, std::vector<int64_t>(ranks_of(axes)), static_cast<int64_t>(grids_.size()) - 1};
    return found->second;
  }

  // The place among the ranks of the axes, of a place in the grid's order of them.
  static int64_t place_of(int64_t index, const Grid& grid, const std::vector<Axis>& axes) {
    std::map<const comm::Line*, int64_t> coordinates;
    for (const Axis& axis : grid.axes) {
      coordinates[axis.line.get()] += index % axis.size;  // absent ones share a line, and have the coordinate 0
      index /= axis.size;
    }
    int64_t place = 0;
    for (const Axis& axis : axes) place = place * axis.size + (axis.absent() ? 0 : coordinates[axis.line.get()]);
    return place;
  }

  std::map<Lines, Grid> grids_;
};

}  // namespace

int64_t ranks_of(const std::vector<Axis>& axes) {
  return std::accumulate(axes.begin(), axes.end(), int64_t{1},
                         [](int64_t n, const Axis& axis) { return n * axis.size; });
}

std::vector<std::vector<int64_t>> one_for_each(const std::vector<Axis>& axes) {
  std::vector<std::vector<int64_t>> owners;
  int64_t ranks = ranks_of(axes);
  for (const Axis& axis : axes) {
    ranks /= axis.size;
    owners.emplace_back(axis.size, ranks);
  }
  return owners;
}

void assign_owners(std::vector<Alike>& alike) {
  std::vector<Alike*> sorted;
  for (Alike& each : alike) {
    if (!each.owned.axes.empty()) sorted.push_back(&each);
  }
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const Alike* a, const Alike* b) { return a->owned.operations > b->owned.operations; });
  Loads loads;
  for (Alike* each : sorted) loads.give(*each);
}

std::vector<std::vector<int64_t>> owners_of(const Alike& alike, int64_t begin, int64_t end) {
  const std::vector<Axis>& axes = alike.owned.axes;
  std::vector<std::vector<int64_t>> owners;
  int64_t first = 0, places = ranks_of(axes);  // of the ranks that are this one as far as the axes before tell
  for (const Axis& axis : axes) {
    places /= axis.size;
    owners.emplace_back(axis.size);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t rank = (alike.owners[i] - first) / places;
      if (alike.owners[i] >= first && rank < axis.size) ++owners.back()[rank];
    }
    first += axis.rank * places;
  }
  return owners;
}

}  // namespace torchdion::engine
