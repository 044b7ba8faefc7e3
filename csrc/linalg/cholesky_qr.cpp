#include "linalg/cholesky_qr.h"

#include <cmath>

#include "comm/collectives.h"

namespace torchdion::linalg {

namespace {

// A condition number of 1/ε needs three passes in FP64 and one in FP32; the fourth is for rounding.
constexpr int kMaxPasses = 4;
// Over an axis every rank must issue the same collectives, so the number of passes is fixed.
constexpr int kPassesOverAxis = 2;

// P's columns come out orthonormal to about ε · amplification. FP64 data asks for more than FP64 Grams give at once.
double settled_amplification(at::ScalarType dtype) { return dtype == at::kDouble ? 1.5 : 8; }

std::vector<int64_t> unsettled(const TriangularInverse& factor, at::ScalarType dtype) {
  std::vector<int64_t> indices;
  for (std::size_t i = 0; i < factor.amplification.size(); ++i) {
    if (factor.amplification[i] > settled_amplification(dtype)) indices.push_back(static_cast<int64_t>(i));
  }
  return indices;
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

comm::Task<> cholesky_qr_(at::Tensor P, Axis rows, int64_t global_rows, Noise noise) {
  Matrices active(P);
  at::Tensor column_noise;
  const int passes = rows.absent() ? kMaxPasses : kPassesOverAxis;
  for (int pass = 0; pass < passes && active.count() > 0; ++pass) {
    at::Tensor H = gram(active);
    co_await comm::all_reduce(H, rows);
    if (pass == 0) column_noise = relative_noise(H.diagonal(0, -2, -1).sqrt(), noise);
    const TriangularInverse factor = cholesky_inverse(H, column_noise, pass == 0, global_rows, P.scalar_type());
    multiply_triangular_(active, factor);
    if (!rows.absent()) continue;
    const std::vector<int64_t> again = unsettled(factor, P.scalar_type());
    if (again.size() == factor.amplification.size()) continue;
    active = active.select(again);
    column_noise = rows_of(column_noise, again);
  }
}

}  // namespace torchdion::linalg
