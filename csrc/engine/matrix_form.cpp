#include "engine/matrix_form.h"

#include <ATen/TensorUtils.h>
#include <c10/util/accumulate.h>

#include "linalg/matrices.h"
#include "words.h"

namespace torchdion::engine {

namespace {

// [batch..., blocks, rows / blocks, columns], before fan-in-first matrices are transposed.
std::vector<int64_t> stacked_sizes(at::IntArrayRef sizes, MatrixForm form) {
  TORCH_CHECK_VALUE(form.batch_dims >= 0 && form.batch_dims < static_cast<int64_t>(sizes.size()), prefix(),
                    "a parameter of shape ", sizes, " has no matrices after ", form.batch_dims,
                    " leading dimensions (batch_dims)");
  const auto rows = sizes.begin() + form.batch_dims;
  if (form.blocks != 1) check_blocks(*rows, form.blocks, c10::str("a parameter of shape ", sizes));
  std::vector<int64_t> stacked(sizes.begin(), rows);
  if (form.blocks > 1) stacked.push_back(form.blocks);
  stacked.push_back(*rows / form.blocks);
  stacked.push_back(c10::multiply_integers(rows + 1, sizes.end()));
  return stacked;
}

MatrixStrides contiguous(const at::Tensor& tensor, MatrixForm form) {
  const std::vector<int64_t> sizes = matrix_sizes(tensor.sizes(), form);
  const int64_t m = sizes.end()[-2], n = sizes.back();
  return form.fan_in_first ? MatrixStrides{1, m, true} : MatrixStrides{n, 1, true};
}

}  // namespace

void check_blocks(int64_t rows, int64_t blocks, const std::string& whose) {
  TORCH_CHECK_VALUE(blocks >= 1 && rows % blocks == 0, prefix(), "blocks must divide the ", rows, " rows of ", whose,
                    ", got ", blocks);
}

MatrixForm form_of(const algorithms::Options& options) {
  return {options.integer_or_zero("batch_dims"), options.integer("blocks"), options.flag("fan_in_first")};
}

std::vector<int64_t> matrix_sizes(at::IntArrayRef sizes, MatrixForm form) {
  std::vector<int64_t> stacked = stacked_sizes(sizes, form);
  if (form.fan_in_first) std::swap(stacked.end()[-2], stacked.end()[-1]);
  return stacked;
}

std::optional<at::Tensor> matrix_view(const at::Tensor& tensor, MatrixForm form) {
  if (tensor.dim() == 2 && form.batch_dims == 0 && form.blocks == 1) {
    return form.fan_in_first ? tensor.t() : tensor;
  }
  const std::vector<int64_t> sizes = stacked_sizes(tensor.sizes(), form);
  const auto strides = at::detail::computeStride(tensor.sizes(), tensor.strides(), sizes);
  if (!strides) return std::nullopt;
  const at::Tensor view = tensor.as_strided(sizes, *strides);
  return form.fan_in_first ? view.transpose(-2, -1) : view;
}

MatrixStrides strides_of_written(const at::Tensor& X, MatrixForm form, bool cut) {
  const std::optional<at::Tensor> view = matrix_view(X, form);
  if (!view || !linalg::is_strided_for_gemm(*view) || X.is_neg() || (cut && !X.is_contiguous())) {
    return contiguous(X, form);
  }
  return {view->stride(-2), view->stride(-1), false};
}

MatrixStrides strides_of_read(const at::Tensor& G, MatrixForm form, bool cut) {
  const std::optional<at::Tensor> view = matrix_view(G, form);
  if (!view || (cut && !G.is_contiguous())) return contiguous(G, form);
  return {view->stride(-2), view->stride(-1), false};
}

}  // namespace torchdion::engine
