#include "linalg/cholesky_qr.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>

namespace torchdion::linalg {

namespace {

// A condition number of 1/ε needs three passes in FP64 and one in FP32; the fourth is for rounding.
constexpr int kMaxPasses = 4;

// P's columns come out orthonormal to about ε · amplification. FP64 data asks for more than FP64 Grams give at once.
double settled_amplification(at::ScalarType dtype) { return dtype == at::kDouble ? 1.5 : 8; }

std::vector<int64_t> unsettled(const TriangularInverse& factor, at::ScalarType dtype) {
  std::vector<int64_t> indices;
  for (std::size_t i = 0; i < factor.amplification.size(); ++i) {
    if (factor.amplification[i] > settled_amplification(dtype)) indices.push_back(static_cast<int64_t>(i));
  }
  return indices;
}

// [count, r (r + 1) / 2]: the lower triangles row by row, which is all of a symmetric matrix that has to be sent.
at::Tensor packed(const at::Tensor& lower) {
  const int64_t count = lower.size(0), r = lower.size(1);
  at::Tensor rows = at::empty({count, r * (r + 1) / 2}, lower.options());
  const double* source = lower.const_data_ptr<double>();
  double* target = rows.mutable_data_ptr<double>();
  for (int64_t row = 0; row < count * r; ++row, source += r) target = std::copy_n(source, row % r + 1, target);
  return rows;
}

void unpack(const at::Tensor& lower, const at::Tensor& rows) {
  const int64_t count = lower.size(0), r = lower.size(1);
  const double* source = rows.const_data_ptr<double>();
  double* target = lower.mutable_data_ptr<double>();
  for (int64_t row = 0; row < count * r; ++row, target += r) {
    std::copy_n(source, row % r + 1, target);
    source += row % r + 1;
  }
}

at::Tensor rows_of(const at::Tensor& tensor, const std::vector<int64_t>& indices) {
  return tensor.index_select(0, at::tensor(indices, at::kLong));
}

}  // namespace

double rounding_noise(at::ScalarType dtype, int64_t inner) {
  const double epsilon = dtype == at::kDouble ? 0x1p-53 : 0x1p-24;
  return epsilon * (inner == 0 ? 4 : 8 + std::sqrt(static_cast<double>(inner)) / 4);
}

at::Tensor relative_noise(const at::Tensor& lengths, Noise noise) {
  const at::Tensor mean = lengths.square().mean(-1, /*keepdim=*/true).sqrt_();
  return mean.div(lengths).mul_(noise.mean).clamp_(noise.own, 1).masked_fill_(lengths.eq(0), 1);
}

int passes_over_axis(at::ScalarType dtype) { return dtype == at::kDouble ? 3 : 2; }

comm::Task<> cholesky_qr_(at::Tensor P, Axis rows, comm::Order order, int64_t global_rows, Noise noise) {
  Matrices active(P);
  at::Tensor column_noise;
  const int passes = rows.absent() ? kMaxPasses : passes_over_axis(P.scalar_type());
  for (int pass = 0; pass < passes; ++pass) {
    const at::Tensor H = gram(active);
    if (!rows.absent()) {
      at::Tensor triangles = packed(H);
      co_await comm::sum(triangles, rows, order);
      unpack(H, triangles);
    }
    if (pass == 0) column_noise = relative_noise(H.diagonal(0, -2, -1).sqrt(), noise);
    const TriangularInverse factor = cholesky_inverse(H, column_noise, pass == 0, global_rows, P.scalar_type());
    multiply_triangular_(active, factor);
    if (!rows.absent()) continue;
    const std::vector<int64_t> again = unsettled(factor, P.scalar_type());
    if (again.empty()) break;
    if (again.size() == factor.amplification.size()) continue;
    active = active.select(again);
    column_noise = rows_of(column_noise, again);
  }
}

}  // namespace torchdion::linalg
