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

// Columns factored together; the work outside the diagonal blocks is in GEMMs.
constexpr int64_t kPanelWidth = 32;

// The Cholesky factor L of one equilibrated Gram matrix H together with its inverse, block column by block column, each
// from those to its left.
//
// Row j of L⁻¹ says how the orthonormal column j is made of the unit columns of P: c / √pivot, where p_j minus what the
// columns before it explain is Σ c_i p_i. If noise_i is the part of p_i that is rounding, the part of column j that is
// rounding has length ‖(c_i noise_i)‖ / √pivot, of which the columns before it have taken their share (noise_left).
// A column carries no signal if the rest reaches 1 / margin.
template <class T>
class Factorization {
 public:
  // H: lower triangle, overwritten by L. Linv: zeros, becomes L⁻¹. noise: becomes that of the orthonormal columns.
  // shares: null, or CholeskyPass::shares of the unit columns, which become those of the orthonormal ones.
  // least_pivot: what the rounding of H leaves of a zero pivot.
  // scale: 0 for a zero column. rows: of P.
  Factorization(T* H, T* Linv, const double* scale, double* noise, T* shares, int64_t r, int64_t rows, double margin,
                double least_pivot)
      : L(H),
        Linv(Linv),
        scale_of(scale),
        noise(noise),
        shares(shares),
        r(r),
        rows(rows),
        margin(margin),
        least_pivot(static_cast<T>(least_pivot)),
        unclear(r, 0),
        dead(r, 0),
        rounding_of(r) {}

  void run() {
    for (int64_t first = 0; first < r; first += kPanelWidth) {
      const int64_t width = std::min(kPanelWidth, r - first), next = first + width, below = r - next;
      const Block<T> diagonal = at(L, first, first);
      cpu::gemm(diagonal, at(L, first, 0), at(L, first, 0).t(), width + below, width, first, -1, 1);
      cpu::gemm(at(Linv, first, 0), at(L, first, 0), at(Linv, 0, 0), width, first, first, -1, 0);
      if (shares) cpu::gemm(at(shares, first, 0), at(L, first, 0), at(shares, 0, 0), width, first, first, -1, 1);
      for (int64_t j = first; j < next; ++j) column(j, first, next);
      panel.resize(below * width);
      const Block<T> solved{panel.data(), width, 1};
      cpu::gemm(solved, at(L, next, first), at(Linv, first, first).t(), below, width, width, 1, 0);
      for (int64_t i = 0; i < below; ++i) {
        for (int64_t j = 0; j < width; ++j)
          L[(next + i) * r + first + j] = unclear[first + j] ? 0 : panel[i * width + j];
      }
    }
    std::copy(rounding_of.begin(), rounding_of.end(), noise);
  }

  // Columns that were longer than their noise, but not by the margin.
  int64_t in_margin() const { return found_in_margin; }

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
  Block<T> at(T* data, int64_t row, int64_t col) const { return {data + row * r + col, r, 1}; }

  // Column j of a diagonal block that begins at `first`, and row j of L⁻¹, of which the part left of the block holds
  // what the columns to the left explain.
  void column(int64_t j, int64_t first, int64_t next) {
    T *row = L + j * r, *inverse = Linv + j * r;
    T schur = row[j];
    for (int64_t k = first; k < j; ++k) {
      schur -= row[k] * row[k];
      const T factor = row[k];
      const T* other = Linv + k * r;
      for (int64_t i = 0; i <= k; ++i) inverse[i] -= factor * other[i];
      if (shares) subtract_share(j, k, factor);
    }
    // A column of which rounding leaves only the order of magnitude is freed of those before it, but kept out of those
    // after it until a later pass sees it clearly: eliminating noise with noise would grow from column to column.
    unclear[j] = schur < least_pivot;
    const T root = std::sqrt(unclear[j] ? least_pivot : schur);
    const double rounding = combined_noise(j) / root;
    const NoiseLeft<double> left = noise_left_of(rows, live);
    dead[j] = margin * rounding * left.longest >= 1 || scale_of[j] == 0;
    if (dead[j] && scale_of[j] != 0 && rounding * left.rms < 1 && !unclear[j]) ++found_in_margin;
    if (!dead[j]) ++live;
    rounding_of[j] = rounding;
    const T scale = dead[j] ? 0 : 1 / root;
    for (int64_t i = 0; shares && i <= j; ++i) shares[j * r + i] *= scale;
    for (int64_t i = 0; i < j; ++i) inverse[i] *= scale;
    inverse[j] = scale;
    for (int64_t i = j + 1; i < next; ++i) {
      T sum = L[i * r + j];
      for (int64_t k = first; k < j; ++k) sum -= L[i * r + k] * row[k];
      L[i * r + j] = unclear[j] ? 0 : sum * scale;
    }
    row[j] = dead[j] ? 0 : root;
  }

  void subtract_share(int64_t j, int64_t k, T factor) {
    for (int64_t i = 0; i <= k; ++i) shares[j * r + i] -= factor * shares[k * r + i];
  }

  // ‖(c_i noise_i)‖ of column j, whose row of L⁻¹ holds c_i but for c_j = 1.
  double combined_noise(int64_t j) const {
    double square = 0;
    if (shares) {
      for (int64_t i = 0; i <= j; ++i) square += shares[j * r + i] * shares[j * r + i];
      return std::sqrt(square);
    }
    const T* inverse = Linv + j * r;
    square = noise[j] * noise[j];
    for (int64_t i = 0; i < j; ++i) square += inverse[i] * inverse[i] * noise[i] * noise[i];
    return std::sqrt(square);
  }

  T *L, *Linv;
  const double* scale_of;
  double* noise;
  T* shares;
  int64_t r, rows, live = 0;  // live: the columns so far that carry signal
  double margin;
  T least_pivot;
  int64_t found_in_margin = 0;
  std::vector<char> unclear, dead;
  std::vector<double> rounding_of;
  std::vector<T> panel;
};

// Scales the lower triangle of H to a unit diagonal and writes the scale: 1 / sqrt(H_jj), 0 for a zero column.
void equilibrate(double* H, double* scale, int64_t r) {
  for (int64_t j = 0; j < r; ++j) {
    const double square = H[j * r + j];
    scale[j] = square == 0 ? 0 : 1 / std::sqrt(square);
  }
  for (int64_t i = 0; i < r; ++i) {
    for (int64_t j = 0; j <= i; ++j) H[i * r + j] = H[i * r + j] * scale[i] * scale[j];
  }
}

// The noise and shares of columns of length 1 / scale become those of unit ones.
void equilibrate_noise(double* noise, double* shares, const double* scale, int64_t r) {
  for (int64_t j = 0; j < r; ++j) noise[j] *= scale[j];
  for (int64_t j = 0; shares && j < r; ++j) {
    for (int64_t i = 0; i <= j; ++i) shares[j * r + i] *= scale[j];
  }
}

// The shares of the orthonormal columns that Linv makes of unit columns with this noise.
void begin_shares(double* shares, const double* Linv, const double* noise, int64_t r) {
  for (int64_t j = 0; j < r; ++j) {
    for (int64_t i = 0; i <= j; ++i) shares[j * r + i] = Linv[j * r + i] * noise[i];
  }
}

template <class T, class F>
void store_transposed(const T* Linv, F* inverse, int64_t r) {
  for (int64_t i = 0; i < r; ++i) {
    for (int64_t j = 0; j <= i; ++j) inverse[j * r + i] = static_cast<F>(Linv[i * r + j]);
  }
}

// What is known of a matrix after its factorization.
struct Factored {
  double amplification;
  int64_t in_margin, without_signal;
};

// Factors one equilibrated Gram matrix in T. `begins`: this pass is the first of it, and `shares` are made here.
template <class T, class F>
Factored factor_matrix(T* H, F* inverse, const double* scale, double* noise, T* shares, bool begins, int64_t r,
                       int64_t rows, double margin, double least_pivot) {
  const std::vector<double> noise_of_unit(noise, noise + r);
  std::vector<T> Linv(r * r, T(0));
  Factorization<T> factorization(H, Linv.data(), scale, noise, begins ? nullptr : shares, r, rows, margin, least_pivot);
  factorization.run();
  if constexpr (std::is_same_v<T, double>) {
    if (begins && shares) begin_shares(shares, Linv.data(), noise_of_unit.data(), r);
  }
  store_transposed(Linv.data(), inverse, r);
  Factored found{factorization.amplification(), factorization.in_margin(), 0};
  for (int64_t j = 0; j < r; ++j) {
    if (Linv[j * (r + 1)] == 0) ++found.without_signal;
  }
  return found;
}

}  // namespace

TriangularInverse Operations::cholesky_inverse(at::Tensor gram, CholeskyPass& pass) {
  const int64_t count = gram.size(0), r = gram.size(1);
  const bool is_first = !pass.noise.defined(), has_shares = pass.dtype == at::kDouble;
  if (is_first) pass.noise = relative_noise(gram.diagonal(0, -2, -1).sqrt(), pass.given);
  if (is_first && has_shares) pass.shares = at::zeros({count, r, r}, at::kDouble);
  // FP32 holds all that products of BF16 leave of a Gram matrix.
  const bool in_single = pass.dtype == at::kFloat && pass.precision == Precision::medium;
  const double least_pivot = linalg::least_pivot(in_single ? at::kFloat : at::kDouble, pass.rows, r);
  TriangularInverse factor{at::empty({count, r}, at::kDouble), at::zeros({count, r, r}, pass.dtype)};
  factor.amplification.resize(count);
  double* scales = factor.scale.mutable_data_ptr<double>();
  double* H = gram.mutable_data_ptr<double>();
  double* noises = pass.noise.mutable_data_ptr<double>();
  double* all_shares = has_shares ? pass.shares.mutable_data_ptr<double>() : nullptr;
  std::atomic<int64_t> without_signal{0}, in_margin{0};
  AT_DISPATCH_FLOATING_TYPES(pass.dtype, "torchdion::cholesky_inverse", [&] {
    scalar_t* inverses = factor.inverse.mutable_data_ptr<scalar_t>();
    cpu::parallel_matrices(count, [&](int64_t index) {
      double *h = H + index * r * r, *scale = scales + index * r, *noise = noises + index * r;
      double* shares = has_shares ? all_shares + index * r * r : nullptr;
      equilibrate(h, scale, r);
      if (!is_first) equilibrate_noise(noise, shares, scale, r);
      Factored found;
      if (in_single) {
        std::vector<float> single(h, h + r * r);
        found = factor_matrix<float>(single.data(), inverses + index * r * r, scale, noise, nullptr, is_first, r,
                                     pass.rows, pass.given.margin, least_pivot);
      } else {
        found = factor_matrix<double>(h, inverses + index * r * r, scale, noise, shares, is_first, r, pass.rows,
                                      pass.given.margin, least_pivot);
      }
      in_margin += found.in_margin;
      factor.amplification[index] = found.amplification;
      if (!(found.amplification > pass.settled)) without_signal += found.without_signal;
    });
  });
  if (pass.counts.without_signal) *pass.counts.without_signal += without_signal;
  if (pass.counts.in_margin) *pass.counts.in_margin += in_margin;
  return factor;
}

}  // namespace torchdion::linalg::cpu
