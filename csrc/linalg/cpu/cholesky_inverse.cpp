#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <limits>

#include "linalg/cholesky_qr.h"
#include "linalg/cpu/convert.h"
#include "linalg/cpu/parallel_rows.h"

namespace torchdion::linalg {

namespace {

using cpu::Block;

// Below this size plain loops beat GEMM calls.
constexpr int64_t kUnblocked = 24;

// The Cholesky factor L of one equilibrated Gram matrix together with its inverse, by recursive halving, so that
// nearly all the work is in GEMMs.
class Factorization {
 public:
  // residual: see cholesky_inverse(). `least_pivot`: what the rounding of the Gram matrix leaves of a zero pivot.
  Factorization(double* residual, double least_pivot, double tolerance)
      : residual_(residual), least_pivot_(least_pivot), tolerance_(tolerance) {}

  // A (lower triangle) ← L and Linv ← L⁻¹ (lower triangle; above it, zeros stay zeros). A column without signal gets
  // a zero column in L and a zero row and column in Linv. `first`: the index of A's first column in the whole matrix.
  void run(Block<double> A, Block<double> Linv, int64_t n, int64_t first) const {
    if (n <= kUnblocked) return unblocked(A, Linv, n, first);
    const int64_t n1 = (n / 2 + 7) / 8 * 8, n2 = n - n1;
    const Block<double> A21 = A.at(n1, 0), A22 = A.at(n1, n1);
    const Block<double> inv11 = Linv, inv21 = Linv.at(n1, 0), inv22 = Linv.at(n1, n1);

    run(A, inv11, n1, first);
    // L21 = A21 L11⁻ᵀ, kept in inv21 until its own turn
    cpu::gemm(inv21, readonly(A21), readonly(inv11).t(), n2, n1, n1, 1, 0);
    downdate(A22, readonly(inv21), n2, n1);
    run(A22, inv22, n2, first + n1);
    // (L⁻¹)21 = −L22⁻¹ L21 L11⁻¹
    cpu::gemm(A21, readonly(inv21), readonly(inv11), n2, n1, n1, 1, 0);
    cpu::gemm(inv21, readonly(inv22), readonly(A21), n2, n1, n2, -1, 0);
  }

 private:
  // A22 ← A22 − L21 L21ᵀ, the lower triangle.
  void downdate(Block<double> A22, Block<const double> L21, int64_t n, int64_t inner) const {
    constexpr int64_t kWidth = 96;
    for (int64_t i = 0; i < n; i += kWidth) {
      const int64_t height = std::min(kWidth, n - i);
      cpu::gemm(A22.at(i, 0), L21.at(i, 0), L21.t(), height, i + height, inner, -1, 1);
    }
  }

  // The pivot that column `column` divides by, or 0 when what is left of the column is rounding.
  double pivot(double schur, int64_t column) const {
    const double clamped = schur < least_pivot_ ? least_pivot_ : schur;  // a NaN stays one
    residual_[column] *= std::sqrt(clamped);
    return residual_[column] <= tolerance_ ? 0 : std::sqrt(clamped);
  }

  void unblocked(Block<double> A, Block<double> Linv, int64_t n, int64_t first) const {
    double* a = A.data;
    double* inv = Linv.data;
    const int64_t lda = A.row_stride, ldi = Linv.row_stride;
    for (int64_t j = 0; j < n; ++j) {
      double schur = a[j * lda + j];
      for (int64_t k = 0; k < j; ++k) schur -= a[j * lda + k] * a[j * lda + k];
      const double root = pivot(schur, first + j), inverse = root == 0 ? 0 : 1 / root;
      a[j * lda + j] = root;
      for (int64_t i = j + 1; i < n; ++i) {
        double sum = a[i * lda + j];
        for (int64_t k = 0; k < j; ++k) sum -= a[i * lda + k] * a[j * lda + k];
        a[i * lda + j] = sum * inverse;
      }
      // Row j of L⁻¹ from the rows above it.
      for (int64_t c = 0; c < j; ++c) {
        double sum = 0;
        for (int64_t k = c; k < j; ++k) sum += a[j * lda + k] * inv[k * ldi + c];
        inv[j * ldi + c] = -sum * inverse;
      }
      inv[j * ldi + j] = inverse;
    }
  }

  double* residual_;
  double least_pivot_, tolerance_;
};

// Scales the lower triangle of H to a unit diagonal and writes the scale: 1 / sqrt(H_jj), 0 for a zero column.
void equilibrate(double* H, double* scale, int64_t r) {
  for (int64_t j = 0; j < r; ++j) {
    const double square = H[j * r + j];
    scale[j] = square == 0 ? 0 : 1 / std::sqrt(square);
  }
  for (int64_t i = 0; i < r; ++i) {
    for (int64_t j = 0; j <= i; ++j) H[i * r + j] *= scale[i] * scale[j];
  }
}

// Writes L⁻ᵀ as T and returns its largest column norm.
template <class T>
double store_transposed(const double* Linv, T* inverse, int64_t r) {
  double largest = 0;
  for (int64_t i = 0; i < r; ++i) {
    double square = 0;
    for (int64_t j = 0; j <= i; ++j) {
      const double entry = Linv[i * r + j];
      square += entry * entry;
      inverse[j * r + i] = static_cast<T>(entry);
    }
    if (!(square <= largest)) largest = square;  // a NaN becomes the largest
  }
  return std::sqrt(largest);
}

}  // namespace

TriangularInverse cholesky_inverse(const at::Tensor& gram, const at::Tensor& residual, bool first_pass, int64_t rows,
                                   at::ScalarType dtype, double tolerance) {
  const int64_t count = gram.size(0), r = gram.size(1);
  const double least_pivot =
      0x1p-53 * (4 * std::sqrt(static_cast<double>(rows)) + static_cast<double>(r));
  TriangularInverse factor{at::empty({count, r}, dtype), at::zeros({count, r, r}, dtype),
                           std::vector<double>(count)};
  double* H = gram.mutable_data_ptr<double>();
  double* left = residual.mutable_data_ptr<double>();
  AT_DISPATCH_FLOATING_TYPES(dtype, "torchdion::cholesky_inverse", [&] {
    scalar_t* scales = factor.scale.mutable_data_ptr<scalar_t>();
    scalar_t* inverses = factor.inverse.mutable_data_ptr<scalar_t>();
    cpu::parallel_matrices(count, [&](int64_t index) {
      double *h = H + index * r * r, *remains = left + index * r;
      std::vector<double> scale(r), Linv(r * r, 0.0);
      equilibrate(h, scale.data(), r);
      for (int64_t j = 0; j < r; ++j) {
        if (!first_pass || scale[j] == 0) remains[j] *= scale[j] == 0 ? 0 : 1 / scale[j];
      }
      Factorization(remains, least_pivot, tolerance).run({h, r, 1}, {Linv.data(), r, 1}, r, 0);
      for (int64_t j = 0; j < r; ++j) scales[index * r + j] = static_cast<scalar_t>(scale[j]);
      factor.amplification[index] = store_transposed(Linv.data(), inverses + index * r * r, r);
    });
  });
  return factor;
}

}  // namespace torchdion::linalg
