// Tensors are read and written where they lie. What kernels cannot follow, or read in pieces, gets a contiguous copy.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "engine/matrix_form.h"

namespace torchdion::engine {

// The strides of the matrices of a tensor as a step sees them: its own, or those of a copy.
struct MatrixStrides {
  int64_t row, col;
  bool of_copy;
};

// `cut`: ranks have pieces of the tensor, which must be contiguous.
MatrixStrides strides_of_written(const at::Tensor& X, MatrixForm form, bool cut);
MatrixStrides strides_of_read(const at::Tensor& G, MatrixForm form, bool cut);

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
  struct Pair {
    at::Tensor target, source;
  };
  std::vector<Pair> written_;
  std::vector<at::Tensor> read_;
};

}  // namespace torchdion::engine
