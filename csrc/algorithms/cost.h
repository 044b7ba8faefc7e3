// What collectives cost, by the algorithms that NCCL and gloo use.
#pragma once

#include <torchdion/layout.h>

#include "algorithms/algorithm.h"

namespace torchdion::algorithms {

// Bytes that a rank forwards of so many that go once round a ring.
inline int64_t ring(int64_t bytes, const Axis& axis) { return bytes * (axis.size - 1) / axis.size; }

inline void add(AxisCost& total, const AxisCost& more) {
  total.elements += more.elements;
  total.bytes += more.bytes;
}

// A sum goes round twice.
inline AxisCost all_reduced(int64_t elements, int64_t element_size, const Axis& axis) {
  return {elements, ring(2 * elements * element_size, axis)};
}

}  // namespace torchdion::algorithms
