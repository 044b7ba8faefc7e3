// Tensors for the tests: seeded ones, and how far two of them are apart.
#pragma once

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>

#include <cmath>

namespace torchdion {

// Those that matrices may have.
inline constexpr at::ScalarType kEveryDtype[] = {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf};

// Independent N(0, 1) entries, the same for the same seed.
inline at::Tensor normal(at::IntArrayRef sizes, uint64_t seed, at::ScalarType dtype = at::kDouble) {
  return at::randn(sizes, at::detail::createCPUGenerator(seed), at::kDouble).to(dtype);
}

// Orthonormal columns: m×n with m ≥ n.
inline at::Tensor orthonormal(int64_t m, int64_t n, uint64_t seed) {
  return std::get<0>(at::linalg_qr(normal({m, n}, seed)));
}

// An m×n matrix, m ≥ n, whose singular values fall from 1 to 1/condition in equal ratios.
inline at::Tensor conditioned(int64_t m, int64_t n, double condition, uint64_t seed) {
  const at::Tensor values = at::logspace(0, -std::log10(condition), n, 10, at::kDouble);
  return (orthonormal(m, n, seed) * values).matmul(orthonormal(n, n, seed + 1).mT());
}

// The same values laid out column by column.
inline at::Tensor column_major(const at::Tensor& matrix) { return matrix.mT().contiguous().mT(); }
inline at::Tensor laid_out(const at::Tensor& matrix, bool by_columns) {
  return by_columns ? column_major(matrix) : matrix;
}

// ‖actual − expected‖ / ‖expected‖ in FP64.
inline double relative_error(const at::Tensor& actual, const at::Tensor& expected) {
  const at::Tensor exact = expected.to(at::kDouble);
  return (at::linalg_vector_norm(actual.to(at::kDouble) - exact) / at::linalg_vector_norm(exact)).item<double>();
}

// ‖actual − expected‖ / ‖expected − start‖: the error over the distance travelled, which a small step cannot hide.
inline double travel_error(const at::Tensor& actual, const at::Tensor& expected, const at::Tensor& start) {
  return relative_error(actual.to(at::kDouble) - start, expected.to(at::kDouble) - start);
}

// max |PᵀP − I|.
inline double orthogonality_error(const at::Tensor& P) {
  const at::Tensor exact = P.to(at::kDouble);
  return (exact.mT().matmul(exact) - at::eye(P.size(-1), at::kDouble)).abs().max().item<double>();
}

// Equal in every bit, so that NaN equals the same NaN.
inline bool bitwise_equal(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() &&
         (a.numel() == 0 || std::memcmp(a.contiguous().data_ptr(), b.contiguous().data_ptr(), a.nbytes()) == 0);
}

// Rounding of one operation: half the distance from 1 to the next number.
inline double unit_roundoff(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return 0x1p-53;
    case at::kFloat:
      return 0x1p-24;
    case at::kHalf:
      return 0x1p-11;
    default:
      return 0x1p-8;  // at::kBFloat16
  }
}

}  // namespace torchdion
