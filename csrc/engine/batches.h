// The tensors of a plan's batches. They are read and written where they lie; what kernels cannot follow, or read in
// pieces, gets a contiguous copy.
#pragma once

#include <utility>
#include <vector>

#include "algorithms/batch.h"
#include "engine/groups.h"
#include "engine/plan.h"

namespace torchdion::engine {

// The copies of a step, alive as long as it.
class Copies {
 public:
  // A contiguous copy to write, which write_back() puts where it belongs; the tensor itself where its memory holds its
  // numbers in order.
  at::Tensor writable(const at::Tensor& tensor);
  // A contiguous copy to read.
  at::Tensor readable(const at::Tensor& tensor);
  void write_back() const;

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> written_;  // where they belong, and the copies
  std::vector<at::Tensor> read_;
};

// One for each batch of the plan, in its order, complete but for what is the device's: counts, the rule for gradients
// and the workspace. All tensors have been checked.
std::vector<algorithms::Batch> batches_of(const Plan& plan, const Groups& groups, Copies& copies);

}  // namespace torchdion::engine
