#include "engine/copies.h"

#include "linalg/matrices.h"

namespace torchdion::engine {

namespace {

MatrixStrides contiguous(const at::Tensor& tensor, MatrixForm form) {
  const std::vector<int64_t> sizes = matrix_sizes(tensor.sizes(), form);
  const int64_t m = sizes.end()[-2], n = sizes.back();
  return form.fan_in_first ? MatrixStrides{1, m, true} : MatrixStrides{n, 1, true};
}

}  // namespace

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

at::Tensor Copies::writable(const at::Tensor& tensor) {
  if (tensor.is_contiguous() && !tensor.is_neg()) return tensor;
  written_.push_back({tensor, tensor.resolve_neg().contiguous()});
  return written_.back().source;
}

at::Tensor Copies::readable(const at::Tensor& tensor) {
  read_.push_back(tensor.contiguous());
  return read_.back();
}

void Copies::write_back() const {
  for (const Pair& pair : written_) pair.target.copy_(pair.source);
}

}  // namespace torchdion::engine
