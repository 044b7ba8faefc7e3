#include "engine/owners.h"

#include "comm/sums.h"

namespace torchdion::engine {

algorithms::Assigned assign_owners(const algorithms::BatchShape& shape, const Layout& layout, OwnedMatrices& owned) {
  const Axis &cols = layout.cols, &replicas = layout.replicas;
  if (!layout.rows.absent() || (cols.absent() && replicas.absent())) return {};
  const algorithms::Assigned before{owned[cols.line.get()], owned[replicas.line.get()]};
  owned[cols.line.get()] += shape.count;
  if (shape.compressed) {
    owned[replicas.line.get()] += comm::share_of(shape.count, cols.rank, cols.size, before.cols);
  }
  return before;
}

}  // namespace torchdion::engine
