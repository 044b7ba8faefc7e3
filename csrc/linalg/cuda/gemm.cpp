#include "linalg/gemm.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "linalg/cuda/lower_tiles.h"
#include "linalg/cuda/operations.h"
#include "linalg/cuda/runtime.h"
#include "linalg/cuda/tensors.h"

namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE {

namespace {

Arithmetic arithmetic_of(at::ScalarType dtype, Precision precision) {
  if (dtype == at::kDouble) return Arithmetic::fp64;
  if (precision == Precision::highest) return Arithmetic::fp32;
  return precision == Precision::high ? Arithmetic::tf32 : Arithmetic::bf16;
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

// How matrices are given to cuBLAS, whose kernels, and with them the last bits of a product, depend on it: as stacks,
// each in equal steps, or through lists of pointers. The number of tensors decides, never addresses: ranks and restarts
// must get the same bits.
bool are_stacks(const Matrices& C, const Matrices& A, const Matrices& B) {
  return C.are_stacked() && A.are_stacked() && B.are_stacked();
}

// A row-major matrix is, column by column, its transpose; so is what cuBLAS is to make of it.
Operand operand(const Matrices& matrices) {
  const int64_t stride = matrices.row_major() ? matrices.row_stride : matrices.col_stride;
  const int64_t leading = matrices.numel() > 0 ? stride : std::max<int64_t>({1, matrices.rows, matrices.cols});
  return {matrices.data.front(), matrices.spacing.value_or(0), nullptr, leading,
          !matrices.row_major(), storage_of(matrices.dtype)};
}

Scalar scalar(const Factor& factor) {
  return {factor.value, factor.device.defined() ? factor.device.const_data_ptr() : nullptr};
}

// C ← β C: a product of no terms.
void scale_(const Matrices& C, const Factor& beta) {
  TORCH_INTERNAL_ASSERT(!beta.device.defined());
  if (beta.value != 0) return Operations::copy_(C, C, beta.value);
  const at::Tensor zero = at::zeros({1, 1}, at::TensorOptions(C.dtype).device(C.device));
  Operations::copy_(C, Matrices(zero.expand({C.count(), C.rows, C.cols})), 1);
}

// A kernel of our own updates C where the factors are so narrow that C's entries are most of what moves. With wider
// ones every block reads so much through the cache that cuBLAS should be no slower (an estimate: no GPU has timed it).
// Shapes decide, as above.
bool is_update(const Product& product) {
  constexpr int64_t kWidest = 192, kBytes = 16;
  const auto begins_at_multiples = [&](const Operand& operand, int64_t bytes_of_entry) {
    return operand.leading * bytes_of_entry % kBytes == 0 && operand.stride * bytes_of_entry % kBytes == 0;
  };
  return product.C.storage == Storage::float32 && product.A.storage == Storage::bfloat16 && product.A.transposed &&
         !product.B.transposed && (product.beta.device || product.beta.value != 0) &&
         product.k <= std::min({kWidest, product.m, product.n}) && product.k * 2 % kBytes == 0 &&
         begins_at_multiples(product.A, 2) && begins_at_multiples(product.B, 2) && begins_at_multiples(product.C, 4);
}

// As many blocks as an H100 runs at once.
constexpr int64_t kBlocksAtOnce = 132;

// TORCHDION_SYMMETRIC_PRODUCTS=0 leaves symmetric products to cuBLAS.
bool may_halve() {
  static const bool allowed = [] {
    const char* given = std::getenv("TORCHDION_SYMMETRIC_PRODUCTS");
    return !given || std::string_view(given) != "0";
  }();
  return allowed;
}

// A symmetric product is computed by half where that should take no longer: a GPU computes kBlocksAtOnce blocks of
// 128×256 entries at a time of the half, or as many of 128×128, in half the time, of the whole. Shapes decide, as
// above.
bool is_by_half(const Product& product) {
  constexpr int64_t kEntries = 8;  // BF16 ones in 16 bytes
  const Operand &A = product.A, &B = product.B, &C = product.C, &addend = product.addend;
  const auto begins_at_multiples = [&](const Operand& operand) {
    return operand.storage == Storage::bfloat16 && operand.leading % kEntries == 0 && operand.stride % kEntries == 0 &&
           (operand.stride > 0 || product.count == 1);
  };
  const int64_t p = product.m, lower = 2 * count_lower_tiles(p) * product.count,
                whole = divide_up(p, kLowerTile / 2) * divide_up(p, kLowerTile / 2) * product.count;
  const bool are_transposes = A.transposed != B.transposed;  // else both are symmetric
  return p > kLowerTile && p % kEntries == 0 && (are_transposes || product.k == p) && product.k % kEntries == 0 &&
         begins_at_multiples(A) && begins_at_multiples(B) && begins_at_multiples(C) &&
         (!addend.data || (begins_at_multiples(addend) && (A.transposed || !B.transposed))) &&
         2 * divide_up(lower, kBlocksAtOnce) <= divide_up(whole, kBlocksAtOnce) && may_halve();
}

// Of C ← α A B + β C with row-major C, all where cuBLAS takes them.
Product product_of(const Matrices& C, const Matrices& A, const Matrices& B, const Scalar& alpha, const Scalar& beta,
                   Arithmetic arithmetic) {
  return {C.cols, C.rows, A.cols, C.count(), operand(B), operand(A), operand(C), alpha, beta, arithmetic};
}

void multiply_as(bool as_stacks, const Matrices& C, const Matrices& A, const Matrices& B, Product product) {
  std::optional<Listed> A_list, B_list, C_list;
  if (!as_stacks) {
    product.A.list = B_list.emplace(B).data();
    product.B.list = A_list.emplace(A).data();
    product.C.list = C_list.emplace(C).data();
  }
  if (is_update(product) && kernels::adds_products(C.device.index())) {
    kernels::add_product(product, stream_of(C.device));
  } else {
    multiply(product, C.device.index());
  }
}

}  // namespace

void Operations::gemm_(const Matrices& C, const Matrices& A, const Matrices& B, const Factor& alpha, const Factor& beta,
                       Precision precision) {
  if (!C.row_major()) return gemm_(C.t(), B.t(), A.t(), alpha, beta, precision);
  if (A.cols == 0) return scale_(C, beta);
  const bool as_stacks = are_stacks(C, A, B);
  const at::ScalarType dtype = operand_dtype(C, A, B, precision);
  const bool fits = C.dtype == dtype || (C.dtype == at::kFloat && is_16_bit(dtype));
  const bool reads_C = beta.device.defined() || beta.value != 0;
  at::Tensor a_memory, b_memory, c_memory, a_aligned, b_aligned, c_aligned;
  const Matrices a = aligned(stored_as(dtype, A, a_memory), as_stacks, a_aligned),
                 b = aligned(stored_as(dtype, B, b_memory), as_stacks, b_aligned),
                 c = aligned(fits ? C : stored_as(dtype, C, c_memory, reads_C), as_stacks, c_aligned, reads_C);
  multiply_as(as_stacks, c, a, b, product_of(c, a, b, scalar(alpha), scalar(beta), arithmetic_of(dtype, precision)));
  if (c.dtype == at::kHalf) kernels::bound(Listed(c), stream_of(C.device));
  if (!fits || c_aligned.defined()) copy_(C, c, 1, {});
}

// A product with an addend apart, or by half, is one of stacks that are stored alike; all others are gemm_'s.
void Operations::addmm_(const Matrices& C, const Matrices& D, const Matrices& A, const Matrices& B, double alpha,
                        double beta, Precision precision, bool symmetric) {
  if (!C.row_major()) return addmm_(C.t(), D.t(), B.t(), A.t(), alpha, beta, precision, symmetric);
  const bool adds = beta != 0, is_apart = adds && D.data != C.data;
  const auto fits = [&](const Matrices& one) { return one.are_stacked() && one.dtype == C.dtype; };
  const auto described = [&](const Matrices& c, const Matrices& d, const Matrices& a, const Matrices& b) {
    Product product = product_of(c, a, b, {alpha}, {beta}, arithmetic_of(C.dtype, precision));
    if (adds) product.addend = operand(d);
    return product;
  };
  const bool fit =
      A.cols > 0 && C.dtype != at::kHalf && fits(C) && fits(A) && fits(B) && (!adds || (fits(D) && D.row_major()));
  const bool halves = symmetric && fit && is_by_half(described(C, D, A, B)) && multiplies_symmetric(C.device.index());
  if (!halves && !(fit && is_apart)) {
    if (is_apart) copy_(C, D, 1, {});
    return gemm_(C, A, B, alpha, beta, precision);
  }
  at::Tensor a_aligned, b_aligned, c_aligned, d_aligned, room;
  const Matrices a = aligned(A, true, a_aligned), b = aligned(B, true, b_aligned),
                 d = adds ? aligned(D, true, d_aligned) : C, c = aligned(C, true, c_aligned, false);
  Product product = described(c, d, a, b);
  product.symmetric = halves;
  if (!halves) {
    room = at::empty({kProductRoom}, at::TensorOptions(at::kByte).device(C.device));
    product.room = room.mutable_data_ptr();
  }
  multiply(product, C.device.index());
  if (c_aligned.defined()) copy_(C, c, 1, {});
}

}  // namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE
