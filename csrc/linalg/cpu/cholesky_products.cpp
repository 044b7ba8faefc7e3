// The products of a Cholesky QR: Gram matrices, and P times the inverse of their factor.
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "linalg/cpu/bfloat16_products.h"
#include "linalg/cpu/convert.h"
#include "linalg/cpu/operations.h"
#include "linalg/cpu/parallel_rows.h"

namespace torchdion::linalg::cpu {

namespace {

// Rows of P converted to FP64 at a time: a GEMM deep enough for full speed whose operand stays in the cache.
constexpr int64_t kGramDepth = 192;
// Only the blocks on and below the diagonal are computed: narrow blocks waste less of the diagonal ones.
constexpr int64_t kGramWidth = 96;

// Columns whose largest entries are within 2⁻⁴⁰ and 2⁴⁰ have squares that FP32 holds, and sums of them.
constexpr int kLargestExponent = 40;

template <class T>
void gram_of(const Matrices& P, int64_t index, double* H) {
  const int64_t r = P.cols;
  std::vector<double> scratch;
  for (int64_t row = 0; row < P.rows; row += kGramDepth) {
    const int64_t depth = std::min(kGramDepth, P.rows - row);
    const cpu::Block<const double> p = cpu::read_rows<double>(P, index, row, depth, scratch);
    for (int64_t i = 0; i < r; i += kGramWidth) {
      const int64_t height = std::min(kGramWidth, r - i);
      cpu::gemm(cpu::Block<double>{H + i * r, r, 1}, p.at(0, i).t(), p, height, i + height, depth, 1, row > 0);
    }
  }
}

// Exponents of two by which columns with these largest entries are to be multiplied; 0 where there is nothing to scale.
std::vector<int> exponents_of(const std::vector<float>& largest) {
  std::vector<int> exponents(largest.size(), 0);
  for (std::size_t j = 0; j < largest.size(); ++j) {
    if (largest[j] == 0 || !std::isfinite(largest[j])) continue;
    const int exponent = std::ilogb(largest[j]);
    if (std::abs(exponent) > kLargestExponent) exponents[j] = -exponent;
  }
  return exponents;
}

// The columns of a matrix of BF16 numbers, each times a power of two, so that nothing of them is lost.
at::Tensor scaled_columns(const Matrices& P, int64_t index, const std::vector<int>& exponents) {
  at::Tensor scaled = at::empty({P.rows, P.cols}, at::kFloat);
  const float* from = P.matrix<const float>(index);
  float* to = scaled.mutable_data_ptr<float>();
  for (int64_t i = 0; i < P.rows; ++i) {
    for (int64_t j = 0; j < P.cols; ++j) to[i * P.cols + j] = std::ldexp(from[i * P.cols + j], exponents[j]);
  }
  return scaled;
}

// Rounds P to BF16 in place and sums the products of what it leaves in FP32.
void gram_of_rounded(const Matrices& P, int64_t index, const at::Tensor& H) {
  const int64_t r = P.cols;
  std::vector<float> largest(r, 0.0F);
  cpu::round_to_bfloat16_(P.matrix<float>(index), P.rows, r, largest.data());
  const std::vector<int> exponents = exponents_of(largest);
  const bool scales = std::any_of(exponents.begin(), exponents.end(), [](int exponent) { return exponent != 0; });
  const at::Tensor scaled = scales ? scaled_columns(P, index, exponents) : at::Tensor();
  const Matrices p = scales ? Matrices(scaled) : P.slice(index, index + 1), h(H);
  cpu::multiply_bfloat16(h, h, p.t(), p, 1, 0, /*symmetric=*/true);
  double* out = H.mutable_data_ptr<double>();
  for (int64_t i = 0; scales && i < r; ++i) {
    for (int64_t j = 0; j <= i; ++j) out[i * r + j] = std::ldexp(out[i * r + j], -exponents[i] - exponents[j]);
  }
}

// Rows scaled into scratch at a time, and columns of the triangle multiplied at a time: below the diagonal block of a
// column block there is nothing, so it costs half of a full product.
constexpr int64_t kTriangleRows = 192, kTriangleWidth = 96;

template <class T>
void multiply_rows(T* p, int64_t rows, int64_t r, const double* scale, const T* inverse, std::vector<T>& scratch) {
  scratch.resize(kTriangleRows * r);
  for (int64_t row = 0; row < rows; row += kTriangleRows) {
    const int64_t height = std::min(kTriangleRows, rows - row);
    T* block = p + row * r;
    for (int64_t i = 0; i < height; ++i) {
      // In FP64: one over the norm of a denormal column is no FP32 number.
      for (int64_t j = 0; j < r; ++j) scratch[i * r + j] = static_cast<T>(block[i * r + j] * scale[j]);
    }
    for (int64_t j = 0; j < r; j += kTriangleWidth) {
      const int64_t width = std::min(kTriangleWidth, r - j);
      cpu::gemm(cpu::Block<T>{block + j, r, 1}, cpu::Block<const T>{scratch.data(), r, 1},
                cpu::Block<const T>{inverse + j, r, 1}, height, width, j + width, T(1), T(0));
    }
  }
}

}  // namespace

at::Tensor Operations::gram(const Matrices& P, Precision precision, at::Tensor*) {
  const int64_t r = P.cols;
  at::Tensor H = at::zeros({P.count(), r, r}, at::kDouble);
  double* out = H.mutable_data_ptr<double>();
  const bool rounds = P.dtype == at::kFloat && precision == Precision::medium;
  const bool in_single = rounds && cpu::has_bfloat16_products();
  cpu::parallel_matrices(P.count(), [&](int64_t index) {
    if (in_single) return gram_of_rounded(P, index, H[index]);
    if (rounds) cpu::round_to_bfloat16_(P.matrix<float>(index), P.rows, r);
    gram_of<double>(P, index, out + index * r * r);
  });
  return H;
}

void Operations::multiply_triangular_(const Matrices&, const Matrices& P, const TriangularInverse& factor, Precision) {
  const int64_t r = P.cols;
  const double* scales = factor.scale.const_data_ptr<double>();
  AT_DISPATCH_FLOATING_TYPES(P.dtype, "torchdion::multiply_triangular_", [&] {
    const scalar_t* inverses = factor.inverse.const_data_ptr<scalar_t>();
    const int64_t grain = 200'000 / (r * r) + 1;
    cpu::parallel_rows(P.count(), P.rows, grain, [&](int64_t index, int64_t first, int64_t rows) {
      std::vector<scalar_t> scratch;
      multiply_rows(P.matrix<scalar_t>(index) + first * r, rows, r, scales + index * r, inverses + index * r * r,
                    scratch);
    });
  });
}

}  // namespace torchdion::linalg::cpu
