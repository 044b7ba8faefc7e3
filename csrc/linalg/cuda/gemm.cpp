#include "linalg/gemm.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <optional>

#include "linalg/cuda/operations.h"
#include "linalg/cuda/runtime.h"
#include "linalg/cuda/tensors.h"

namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE {

namespace {

Arithmetic arithmetic_of(at::ScalarType dtype, Precision precision) {
  if (dtype == at::kDouble) return Arithmetic::fp64;
  switch (precision) {
    case Precision::highest:
      return Arithmetic::fp32;
    case Precision::high:
      return Arithmetic::tf32;
    default:
      return Arithmetic::bf16;
  }
}

bool is_16_bit(at::ScalarType dtype) { return dtype == at::kHalf || dtype == at::kBFloat16; }

// What A and B are to be stored as: the same. The factors follow the large matrices, which nobody copies: a 16-bit C
// takes 16-bit operands, and 16-bit momenta read by a product round what they meet, unless the precision forbids it.
at::ScalarType operand_dtype(const Matrices& C, const Matrices& A, const Matrices& B, Precision precision) {
  if (compute_dtype({C.dtype, A.dtype, B.dtype}) == at::kDouble) return at::kDouble;
  if (A.dtype == B.dtype && (A.dtype == C.dtype || C.dtype == at::kFloat)) return A.dtype;
  if (precision == Precision::highest) return at::kFloat;
  if (is_16_bit(C.dtype)) return C.dtype;
  return is_16_bit(A.dtype) ? A.dtype : B.dtype;
}

// Whether cuBLAS, which cannot look at pointers in device memory, takes it that they are multiples of 16 bytes: for
// 16-bit matrices and those that it rounds (its documentation of cublasGemmBatchedEx). Matrices that lie otherwise, as
// those of odd sizes in a stack do, are copied.
bool reads_16_bytes(at::ScalarType dtype, Precision precision) {
  return dtype != at::kDouble && (dtype != at::kFloat || precision != Precision::highest);
}

// Elements from each matrix to the next, where these are the same and not negative.
std::optional<int64_t> spacing(const Matrices& matrices) {
  if (matrices.count() < 2) return 0;
  const int64_t bytes = matrices.data[1] - matrices.data[0];
  const auto element = static_cast<int64_t>(c10::elementSize(matrices.dtype));
  if (bytes < 0 || bytes % element != 0) return std::nullopt;
  for (std::size_t i = 2; i < matrices.data.size(); ++i) {
    if (matrices.data[i] - matrices.data[i - 1] != bytes) return std::nullopt;
  }
  return bytes / element;
}

bool are_spaced(const Matrices& C, const Matrices& A, const Matrices& B) {
  return spacing(C) && spacing(A) && spacing(B);
}

// A row-major matrix is, column by column, its transpose; so is what cuBLAS is to make of it.
Operand operand(const Matrices& matrices) {
  Operand described;
  described.data = matrices.data.front();
  described.stride = spacing(matrices).value_or(0);
  const int64_t stride = matrices.row_major() ? matrices.row_stride : matrices.col_stride;
  described.leading = matrices.numel() > 0 ? stride : std::max<int64_t>({1, matrices.rows, matrices.cols});
  described.transposed = !matrices.row_major();
  described.storage = storage_of(matrices.dtype);
  return described;
}

Scalar scalar(const Factor& factor) {
  return {factor.value, factor.device.defined() ? factor.device.const_data_ptr() : nullptr};
}

// C ← β C: a product of no terms.
void scale_(const Matrices& C, const Factor& beta) {
  TORCH_INTERNAL_ASSERT(!beta.device.defined() || beta.value == 0);
  if (beta.value != 0) return Operations::copy_(C, C, beta.value);
  const at::Tensor zero = at::zeros({1, 1}, at::TensorOptions(C.dtype).device(C.device));
  Operations::copy_(C, Matrices(zero.expand({C.count(), C.rows, C.cols})), 1);
}

}  // namespace

void Operations::gemm_(const Matrices& C, const Matrices& A, const Matrices& B, const Factor& alpha, const Factor& beta,
                       Precision precision) {
  if (!C.row_major()) return gemm_(C.t(), B.t(), A.t(), alpha, beta, precision);
  if (A.cols == 0) return scale_(C, beta);
  const at::ScalarType dtype = operand_dtype(C, A, B, precision);
  const bool fits = C.dtype == dtype || (C.dtype == at::kFloat && is_16_bit(dtype));
  at::Tensor a_memory, b_memory, c_memory, a_aligned, b_aligned, c_aligned;
  Matrices a = stored_as(dtype, A, a_memory), b = stored_as(dtype, B, b_memory);
  Matrices c = fits ? C : stored_as(dtype, C, c_memory, /*with_entries=*/beta.value != 0);
  if (reads_16_bytes(dtype, precision) && !are_spaced(c, a, b)) {
    a = aligned(a, a_aligned);
    b = aligned(b, b_aligned);
    c = aligned(c, c_aligned);
  }
  Product product;
  product.m = C.cols;
  product.n = C.rows;
  product.k = A.cols;
  product.count = C.count();
  product.A = operand(b);
  product.B = operand(a);
  product.C = operand(c);
  std::optional<Listed> a_list, b_list, c_list;
  if (!are_spaced(c, a, b)) {
    product.A.list = b_list.emplace(b).data();
    product.B.list = a_list.emplace(a).data();
    product.C.list = c_list.emplace(c).data();
  }
  product.alpha = scalar(alpha);
  product.beta = scalar(beta);
  product.arithmetic = arithmetic_of(dtype, precision);
  multiply(product, C.device.index());
  if (c.dtype == at::kHalf) kernels::bound(Listed(c), c.count(), c.rows, c.cols, stream_of(C.device));
  if (!fits || c_aligned.defined()) copy_(C, c, 1);
}

}  // namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE
