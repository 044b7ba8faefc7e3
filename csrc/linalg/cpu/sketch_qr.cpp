#include "linalg/sketch_qr.h"

#include <ATen/Parallel.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/linalg_qr.h>
#include <ATen/ops/linalg_solve_triangular.h>
#include <ATen/ops/linalg_vector_norm.h>

#include <cmath>

namespace torchdion::linalg {

namespace {

// The first r rows of A ← R of A = Q R by Householder reflections, where a column without signal is passed over
// rather than given a direction of its own: it neither turns the later columns nor uses up a row. Only for matrices in
// which LAPACK's QR found such a column.
void echelon_qr(double* A, int64_t k, int64_t r, double tolerance, std::vector<char>& dead) {
  std::vector<double> v(k);
  int64_t top = 0;
  std::vector<int64_t> row_of(r, -1);
  for (int64_t j = 0; j < r; ++j) {
    double square = 0;
    for (int64_t i = top; i < k; ++i) square += A[i * r + j] * A[i * r + j];
    const double length = std::sqrt(square);
    dead[j] = top == k || length <= tolerance;
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
  }
  // Move each surviving row down to its column's place, from the last one up; a dead column becomes a unit one.
  for (int64_t j = r; j-- > 0;) {
    for (int64_t c = 0; c < r; ++c) {
      const bool empty = dead[j] || dead[c] || c < j;
      A[j * r + c] = empty ? static_cast<double>(c == j) : A[row_of[j] * r + c];
    }
  }
}

bool has_dead_column(const double* R, int64_t r, double tolerance) {
  for (int64_t j = 0; j < r; ++j) {
    if (std::abs(R[j * r + j]) <= tolerance) return true;
  }
  return false;
}

}  // namespace

TriangularInverse sketch_qr_inverse(const at::Tensor& SP, double tolerance) {
  const int64_t count = SP.size(0), k = SP.size(1), r = SP.size(2);
  const at::Tensor norms = at::linalg_vector_norm(SP, 2, {1}, false, at::kDouble);
  const at::Tensor scale = norms.reciprocal().masked_fill_(norms.eq(0), 0);
  const at::Tensor unit = SP.mul(scale.unsqueeze(1));  // FP64, as the scale is
  const at::Tensor R = std::get<1>(at::linalg_qr(unit, "r")).contiguous();
  at::parallel_for(0, count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t index = begin; index < end; ++index) {
      double* upper = R.mutable_data_ptr<double>() + index * r * r;
      if (!has_dead_column(upper, r, tolerance)) continue;
      std::vector<char> dead(r, 0);
      double* columns = unit.mutable_data_ptr<double>() + index * k * r;
      echelon_qr(columns, k, r, tolerance, dead);
      std::copy_n(columns, r * r, upper);
      for (int64_t j = 0; j < r; ++j) {
        if (dead[j]) scale.mutable_data_ptr<double>()[index * r + j] = 0;
      }
    }
  });
  const at::Tensor identity = at::eye(r, R.options()).expand({count, r, r});
  const at::Tensor inverse = at::linalg_solve_triangular(R, identity, /*upper=*/true);
  return {scale.to(SP.scalar_type()), inverse.to(SP.scalar_type()).contiguous(), {}};
}

}  // namespace torchdion::linalg
