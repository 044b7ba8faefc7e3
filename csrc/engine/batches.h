// Sorts the matrices of a group into batches that one task updates together.
#pragma once

#include <vector>

#include "algorithms/dion.h"
#include "engine/groups.h"

namespace torchdion::engine {

// The copies of tensors whose strides no kernel can follow, alive as long as the step that uses them.
class Copies {
 public:
  // A contiguous copy to write, which write_back() puts where it belongs; the tensor itself where its memory holds its
  // numbers in order.
  at::Tensor writable(const at::Tensor& tensor);
  // A contiguous copy to read.
  at::Tensor readable(const at::Tensor& tensor);
  void write_back() const;

 private:
  struct Pair {
    at::Tensor target, source;
  };
  std::vector<Pair> written_;
  std::vector<at::Tensor> read_;
};

// Batches of matrices alike in shape, dtype, strides, layout, orientation and rank, cut so that the workspace of each
// stays small. Where ranks communicate, whole sizes alone decide: every rank gets as many batches in the same order, of
// which some may be empty. Throws c10::Error where state, layout and parameters do not fit together.
std::vector<algorithms::DionBatch> dion_batches(const DionGroup& group, bool capturable, Copies& copies);

}  // namespace torchdion::engine
