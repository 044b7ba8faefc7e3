#include "linalg/matrices.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "linalg/memory.h"

namespace torchdion::linalg {

namespace {

// Of rows and columns. A dimension of size 1 has no meaningful stride; give it the one that a contiguous matrix would
// have.
std::pair<int64_t, int64_t> meaningful_strides(const at::Tensor& stack) {
  const int64_t rows = stack.size(-2), cols = stack.size(-1);
  int64_t row = stack.stride(-2), col = stack.stride(-1);
  if (cols == 1) col = row == 1 && rows > 1 ? rows : 1;
  if (rows == 1) row = col == 1 ? cols : 1;
  return {row, col};
}

// Of the matrices of a tensor, in elements; none where its leading dimensions cannot be one.
std::optional<int64_t> spacing_of(const at::Tensor& stack) {
  std::optional<int64_t> spacing;
  int64_t inner = 1;  // matrices of the dimensions that were seen
  for (int64_t d = stack.dim() - 2; d-- > 0;) {
    if (stack.size(d) == 1) continue;
    if (!spacing) {
      spacing = stack.stride(d);
    } else if (stack.stride(d) != *spacing * inner) {
      return std::nullopt;
    }
    inner *= stack.size(d);
  }
  return spacing.value_or(0);
}

}  // namespace

Matrices::Matrices(const at::Tensor& stack)
    : rows(stack.size(-2)), cols(stack.size(-1)), dtype(stack.scalar_type()), device(stack.device()) {
  std::tie(row_stride, col_stride) = meaningful_strides(stack);
  append(stack);
  spacing = spacing_of(stack);
}

Matrices::Matrices(at::TensorList list) {
  TORCH_CHECK_VALUE(!list.empty(), "torchdion: the list of matrices is empty");
  *this = Matrices(list[0]);
  for (const at::Tensor& stack : list.slice(1)) append(stack);
}

void Matrices::append(const at::Tensor& stack) {
  TORCH_CHECK_VALUE(has_memory(stack), "torchdion: a matrix must have memory of its own, got a wrapped, fake or freed ",
                    "tensor of shape ", stack.sizes());
  pointers.reset();
  spacing.reset();
  char* base = static_cast<char*>(stack.data_ptr());
  const int64_t dims = stack.dim() - 2;
  int64_t matrices = 1;
  for (int64_t d = 0; d < dims; ++d) matrices *= stack.size(d);
  for (int64_t i = 0; i < matrices; ++i) {
    int64_t offset = 0, rest = i;
    for (int64_t d = dims; d-- > 0;) {
      offset += rest % stack.size(d) * stack.stride(d);
      rest /= stack.size(d);
    }
    data.push_back(base + offset * static_cast<int64_t>(stack.element_size()));
  }
}

Matrices Matrices::t() const {
  Matrices transposed = *this;
  std::swap(transposed.rows, transposed.cols);
  std::swap(transposed.row_stride, transposed.col_stride);
  return transposed;
}

Matrices Matrices::select(const std::vector<int64_t>& indices) const {
  Matrices chosen = *this;
  chosen.pointers.reset();
  chosen.data.clear();
  for (int64_t index : indices) chosen.data.push_back(data[index]);
  chosen.spacing = chosen.count() < 2 ? std::optional<int64_t>(0) : std::nullopt;
  return chosen;
}

Matrices Matrices::slice(int64_t begin, int64_t end) const {
  Matrices part = *this;
  part.data.assign(data.begin() + begin, data.begin() + end);
  if (pointers.defined()) part.pointers = pointers.narrow(0, begin, end - begin);
  if (part.count() < 2) part.spacing = 0;
  return part;
}

Matrices Matrices::narrow(int64_t first, int64_t count) const {
  if (first == 0 && count == rows) return *this;
  Matrices part = *this;
  part.pointers.reset();
  for (char*& matrix : part.data) matrix += first * row_stride * static_cast<int64_t>(c10::elementSize(dtype));
  part.rows = count;
  return part;
}

bool is_strided_for_gemm(const at::Tensor& matrix) {
  const int64_t rows = matrix.size(-2), cols = matrix.size(-1);
  const auto [row_stride, col_stride] = meaningful_strides(matrix);
  return (col_stride == 1 && row_stride >= cols) || (row_stride == 1 && col_stride >= rows);
}

at::ScalarType compute_dtype(std::initializer_list<at::ScalarType> operands) {
  return std::find(operands.begin(), operands.end(), at::kDouble) != operands.end() ? at::kDouble : at::kFloat;
}

}  // namespace torchdion::linalg
