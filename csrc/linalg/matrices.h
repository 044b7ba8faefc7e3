// Matrices: equally shaped matrices wherever they lie in memory, the operand of every operation on a list. Building
// one costs no tensor; a transposed view costs a copy of the pointers.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

namespace torchdion::linalg {

struct Matrices {
  std::vector<char*> data;  // one pointer per matrix
  int64_t rows = 0, cols = 0;
  int64_t row_stride = 0, col_stride = 0;  // in elements
  at::ScalarType dtype = at::kFloat;
  c10::Device device = at::kCPU;
  // Elements from each matrix to the next, where all are of one tensor: never found by looking where tensors lie, as
  // ranks and restarts must take the same kernels.
  std::optional<int64_t> spacing = {};
  at::Tensor pointers = {};  // the same as `data` in the memory of a GPU, after linalg::upload()

  Matrices() = default;
  // The matrices of a tensor of shape [..., rows, cols].
  explicit Matrices(const at::Tensor& stack);
  // A list of tensors of that shape, alike in shape, strides and dtype.
  explicit Matrices(at::TensorList list);

  int64_t count() const { return static_cast<int64_t>(data.size()); }
  int64_t numel() const { return count() * rows * cols; }
  bool row_major() const { return col_stride == 1; }
  bool are_stacked() const { return spacing.has_value(); }

  // Appends the matrices of a stack of shape [..., rows, cols] laid out as the others are.
  void append(const at::Tensor& stack);
  Matrices t() const;
  Matrices select(const std::vector<int64_t>& indices) const;
  Matrices slice(int64_t begin, int64_t end) const;
  // Some rows of each.
  Matrices narrow(int64_t first, int64_t count) const;

  template <class T>
  T* matrix(int64_t index) const {
    return reinterpret_cast<T*>(data[index]);
  }
};

// Puts the pointers of these lists, all on one device, into its memory once for all operations that follow. Where they
// have not been, each operation does it for itself.
void upload(const std::vector<Matrices*>& lists);

// Whether a kernel can read the matrix: its rows or its columns are contiguous and none overlap.
bool is_strided_for_gemm(const at::Tensor& matrix);

// FP64 when any of the operands is FP64, else FP32: half-precision matrices are multiplied and summed in FP32.
at::ScalarType compute_dtype(std::initializer_list<at::ScalarType> operands);

}  // namespace torchdion::linalg
