#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <atomic>
#include <cmath>
#include <limits>

#include "linalg/cpu/convert.h"
#include "linalg/cpu/operations.h"
#include "linalg/cpu/parallel_rows.h"

namespace torchdion::linalg::cpu {

namespace {

using cpu::Block;

// Columns factored together; the work outside the diagonal blocks is in GEMMs.
constexpr int64_t kWidth = 32;

// The Cholesky factor L of one equilibrated Gram matrix H together with its inverse, block column by block column, each
// from those to its left.
//
// Row j of L⁻¹ says how the orthonormal column j is made of the unit columns of P: c / √pivot, where p_j minus what the
// columns before it explain is Σ c_i p_i. If noise_i is the part of p_i that is rounding, the part of column j that is
// rounding has length ‖(c_i noise_i)‖ / √pivot. Where that reaches 1, the column carries no signal.
class Factorization {
 public:
  // H: lower triangle, overwritten by L. Linv: zeros, becomes L⁻¹. noise: becomes that of the orthonormal columns.
  // least_pivot: what the rounding of H leaves of a zero pivot.
  Factorization(double* H, double* Linv, double* noise, int64_t r, double least_pivot)
      : L(H), Linv(Linv), noise(noise), r(r), least_pivot(least_pivot), unclear(r, 0), dead(r, 0), rounding_of(r) {}

  void run() {
    for (int64_t first = 0; first < r; first += kWidth) {
      const int64_t width = std::min(kWidth, r - first), next = first + width, below = r - next;
      const Block<double> diagonal = at(L, first, first);
      cpu::gemm(diagonal, at_const(L, first, 0), at_const(L, first, 0).t(), width + below, width, first, -1, 1);
      cpu::gemm(at(Linv, first, 0), at_const(L, first, 0), at_const(Linv, 0, 0), width, first, first, -1, 0);
      for (int64_t j = first; j < next; ++j) column(j, first, next);
      panel.resize(below * width);
      const Block<double> solved{panel.data(), width, 1};
      cpu::gemm(solved, at_const(L, next, first), at_const(Linv, first, first).t(), below, width, width, 1, 0);
      for (int64_t i = 0; i < below; ++i) {
        for (int64_t j = 0; j < width; ++j)
          L[(next + i) * r + first + j] = unclear[first + j] ? 0 : panel[i * width + j];
      }
    }
    std::copy(rounding_of.begin(), rounding_of.end(), noise);
  }

  // The largest column norm of L⁻ᵀ: how much the rounding of P grows.
  double amplification() const {
    double largest = 0;
    for (int64_t j = 0; j < r; ++j) {
      double square = 0;
      for (int64_t i = 0; i <= j; ++i) square += Linv[j * r + i] * Linv[j * r + i];
      if (!(square <= largest)) largest = square;  // a NaN becomes the largest
    }
    return std::sqrt(largest);
  }

 private:
  Block<double> at(double* data, int64_t row, int64_t col) const { return {data + row * r + col, r, 1}; }
  Block<const double> at_const(double* data, int64_t row, int64_t col) const { return readonly(at(data, row, col)); }

  // Column j of a diagonal block that begins at `first`, and row j of L⁻¹, of which the part left of the block holds
  // what the columns to the left explain.
  void column(int64_t j, int64_t first, int64_t next) {
    double *row = L + j * r, *inverse = Linv + j * r;
    double schur = row[j];
    for (int64_t k = first; k < j; ++k) {
      schur -= row[k] * row[k];
      const double factor = row[k];
      const double* other = Linv + k * r;
      for (int64_t i = 0; i <= k; ++i) inverse[i] -= factor * other[i];
    }
    // A column of which rounding leaves only the order of magnitude is freed of those before it, but kept out of those
    // after it until a later pass sees it clearly: eliminating noise with noise would grow from column to column.
    unclear[j] = schur < least_pivot;
    const double root = std::sqrt(unclear[j] ? least_pivot : schur);
    double square = noise[j] * noise[j];
    for (int64_t i = 0; i < j; ++i) square += inverse[i] * inverse[i] * noise[i] * noise[i];
    const double rounding = std::sqrt(square) / root;
    dead[j] = rounding >= 1 || row[j] == 0;
    rounding_of[j] = rounding;
    const double scale = dead[j] ? 0 : 1 / root;
    for (int64_t i = 0; i < j; ++i) inverse[i] *= scale;
    inverse[j] = scale;
    for (int64_t i = j + 1; i < next; ++i) {
      double sum = L[i * r + j];
      for (int64_t k = first; k < j; ++k) sum -= L[i * r + k] * row[k];
      L[i * r + j] = unclear[j] ? 0 : sum * scale;
    }
    row[j] = dead[j] ? 0 : root;
  }

  double *L, *Linv, *noise;
  int64_t r;
  double least_pivot;
  std::vector<char> unclear, dead;
  std::vector<double> rounding_of, panel;
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

template <class T>
void store_transposed(const double* Linv, T* inverse, int64_t r) {
  for (int64_t i = 0; i < r; ++i) {
    for (int64_t j = 0; j <= i; ++j) inverse[j * r + i] = static_cast<T>(Linv[i * r + j]);
  }
}

}  // namespace

TriangularInverse Operations::cholesky_inverse(const at::Tensor& gram, CholeskyPass& pass) {
  const int64_t count = gram.size(0), r = gram.size(1);
  const bool first_pass = pass.given.has_value();
  if (first_pass) pass.noise = relative_noise(gram.diagonal(0, -2, -1).sqrt(), *pass.given);
  const double least_pivot = linalg::least_pivot(at::kDouble, pass.rows, r);
  TriangularInverse factor{at::empty({count, r}, at::kDouble), at::zeros({count, r, r}, pass.dtype)};
  factor.amplification.resize(count);
  double* scales = factor.scale.mutable_data_ptr<double>();
  double* H = gram.mutable_data_ptr<double>();
  double* noises = pass.noise.mutable_data_ptr<double>();
  std::atomic<int64_t> without_signal{0};
  AT_DISPATCH_FLOATING_TYPES(pass.dtype, "torchdion::cholesky_inverse", [&] {
    scalar_t* inverses = factor.inverse.mutable_data_ptr<scalar_t>();
    cpu::parallel_matrices(count, [&](int64_t index) {
      double *h = H + index * r * r, *scale = scales + index * r, *column_noise = noises + index * r;
      equilibrate(h, scale, r);
      for (int64_t j = 0; !first_pass && j < r; ++j) column_noise[j] *= scale[j];
      std::vector<double> Linv(r * r, 0.0);
      Factorization factorization(h, Linv.data(), column_noise, r, least_pivot);
      factorization.run();
      store_transposed(Linv.data(), inverses + index * r * r, r);
      factor.amplification[index] = factorization.amplification();
      if (factor.amplification[index] > pass.settled) return;
      for (int64_t j = 0; j < r; ++j) {
        if (Linv[j * (r + 1)] == 0) ++without_signal;
      }
    });
  });
  if (pass.without_signal) *pass.without_signal += without_signal;
  return factor;
}

}  // namespace torchdion::linalg::cpu
