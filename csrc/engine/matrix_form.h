// How the matrices of a parameter lie in its tensor.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>

#include "algorithms/option.h"

namespace torchdion::engine {

struct MatrixForm {
  int64_t batch_dims = 0;     // leading dimensions that count matrices (experts)
  int64_t blocks = 1;         // matrices fused along the rows (3 for QKV)
  bool fan_in_first = false;  // the first matrix dimension is the fan-in (ConvTranspose)
};

// That of the options of a group or an algorithm.
MatrixForm form_of(const algorithms::Options& options);

// Throws c10::ValueError where blocks do not divide the rows; whose: the parameter's name.
void check_blocks(int64_t rows, int64_t blocks, const std::string& whose);

// The matrices of `tensor` as a view of shape [stack..., m, n], or nothing where its strides allow no such view. What
// follows the rows is flattened into the columns.
std::optional<at::Tensor> matrix_view(const at::Tensor& tensor, MatrixForm form);

// The shape [stack..., m, n] of that view. Throws c10::ValueError where the form does not fit the sizes.
std::vector<int64_t> matrix_sizes(at::IntArrayRef sizes, MatrixForm form);

// The strides of the matrices of a tensor as a step sees them: its own, or those of a copy.
struct MatrixStrides {
  int64_t row, col;
  bool of_copy;
};

// `cut`: ranks have pieces of the tensor, which must be contiguous.
MatrixStrides strides_of_written(const at::Tensor& X, MatrixForm form, bool cut);
MatrixStrides strides_of_read(const at::Tensor& G, MatrixForm form, bool cut);

}  // namespace torchdion::engine
