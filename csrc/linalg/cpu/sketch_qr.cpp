#include "linalg/triangular_inverse.h"

#include <ATen/Parallel.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/linalg_qr.h>
#include <ATen/ops/linalg_solve_triangular.h>
#include <ATen/ops/linalg_vector_norm.h>

#include <atomic>
#include <cmath>

#include "linalg/cpu/operations.h"

namespace torchdion::linalg::cpu {

namespace {

// ‖(c_i noise_i)‖ for the combination Σ c_i a_i, c_j = 1, that is left of column j when the columns before it have
// taken their part: by back substitution in the rows of R that stand so far.
double combined_noise(const double* A, const double* noise, int64_t r, int64_t j,
                      const std::vector<int64_t>& columns_of_rows) {
  const int64_t top = static_cast<int64_t>(columns_of_rows.size());
  std::vector<double> c(top);
  double square = noise[j] * noise[j];
  for (int64_t i = top; i-- > 0;) {
    double sum = A[i * r + j];
    for (int64_t k = i + 1; k < top; ++k) sum -= A[i * r + columns_of_rows[k]] * c[k];
    c[i] = sum / A[i * r + columns_of_rows[i]];
    square += c[i] * c[i] * noise[columns_of_rows[i]] * noise[columns_of_rows[i]];
  }
  return std::sqrt(square);
}

// The first r rows of A ← R of A = Q R by Householder reflections, where a column without signal is passed over rather
// than given a direction of its own: it neither turns the later columns nor uses up a row. Only for matrices in which
// LAPACK's QR found such a column.
// Returns how many such columns were longer than the noise.
int64_t echelon_qr(double* A, int64_t k, int64_t r, const double* noise, double margin, std::vector<char>& dead) {
  int64_t in_margin = 0;
  std::vector<double> v(k);
  int64_t top = 0;
  std::vector<int64_t> row_of(r, -1), columns_of_rows;
  for (int64_t j = 0; j < r; ++j) {
    double square = 0;
    for (int64_t i = top; i < k; ++i) square += A[i * r + j] * A[i * r + j];
    const double length = std::sqrt(square);
    const double of_noise = combined_noise(A, noise, r, j, columns_of_rows);
    const NoiseLeft<double> left = noise_left_of(k, top);
    dead[j] = top == k || length <= margin * of_noise * left.longest;
    in_margin += top < k && dead[j] && length > of_noise * left.rms;
    if (dead[j]) continue;
    const double alpha = A[top * r + j] > 0 ? -length : length;
    double v_square = 0;
    for (int64_t i = top; i < k; ++i) {
      v[i] = A[i * r + j] - (i == top ? alpha : 0);
      v_square += v[i] * v[i];
    }
    for (int64_t c = j; c < r; ++c) {
      double dot = 0;
      for (int64_t i = top; i < k; ++i) dot += v[i] * A[i * r + c];
      const double factor = 2 * dot / v_square;
      for (int64_t i = top; i < k; ++i) A[i * r + c] -= factor * v[i];
    }
    row_of[j] = top++;
    columns_of_rows.push_back(j);
  }
  // Move each surviving row down to its column's place, from the last one up; a dead column becomes a unit one.
  for (int64_t j = r; j-- > 0;) {
    for (int64_t c = 0; c < r; ++c) {
      const bool empty = dead[j] || dead[c] || c < j;
      A[j * r + c] = empty ? static_cast<double>(c == j) : A[row_of[j] * r + c];
    }
  }
  return in_margin;
}

}  // namespace

TriangularInverse Operations::sketch_qr_inverse(const at::Tensor& SP, Noise noise, at::ScalarType dtype, Precision,
                                                int64_t* in_margin) {
  const int64_t count = SP.size(0), k = SP.size(1), r = SP.size(2);
  const at::Tensor norms = at::linalg_vector_norm(SP, 2, {1});
  const at::Tensor scale = norms.reciprocal().masked_fill_(norms.eq(0), 0);
  const at::Tensor unit = SP.mul(scale.unsqueeze(1));  // FP64, as the scale is
  const at::Tensor R = std::get<1>(at::linalg_qr(unit, "r")).contiguous();
  const at::Tensor column_noise = relative_noise(norms, noise).contiguous();
  const at::Tensor largest = column_noise.amax(-1, /*keepdim=*/true);
  const double allowed = 1 / (noise.margin * noise_left_of(k, 0).longest);
  const at::Tensor clear = column_amplification(R).mul(largest).lt(allowed).all(-1);  // a NaN is not
  std::atomic<int64_t> found_in_margin{0};
  at::parallel_for(0, count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t index = begin; index < end; ++index) {
      double* upper = R.mutable_data_ptr<double>() + index * r * r;
      if (clear.const_data_ptr<bool>()[index]) continue;
      std::vector<char> dead(r, 0);
      double* columns = unit.mutable_data_ptr<double>() + index * k * r;
      found_in_margin +=
          echelon_qr(columns, k, r, column_noise.const_data_ptr<double>() + index * r, noise.margin, dead);
      std::copy_n(columns, r * r, upper);
      for (int64_t j = 0; j < r; ++j) {
        if (dead[j]) scale.mutable_data_ptr<double>()[index * r + j] = 0;
      }
    }
  });
  if (in_margin) *in_margin += found_in_margin;
  const at::Tensor identity = at::eye(r, R.options()).expand({count, r, r});
  const at::Tensor inverse = at::linalg_solve_triangular(R, identity, /*upper=*/true);
  return {scale, inverse.to(dtype).contiguous()};
}

}  // namespace torchdion::linalg::cpu
