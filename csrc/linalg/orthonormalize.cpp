#include "linalg/orthonormalize.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_qr.h>
#include <ATen/ops/linalg_vector_norm.h>

#include <cmath>

#include "comm/collectives.h"
#include "linalg/cholesky_qr.h"
#include "linalg/gemm.h"
#include "linalg/sketch_qr.h"

namespace torchdion::linalg {

namespace {

int64_t sketch_rows(int64_t r, double oversample) {
  return static_cast<int64_t>(std::ceil(oversample * static_cast<double>(r)));
}

// S P for the S of the step, of which this rank draws the columns that meet its rows of P.
at::Tensor sketched(const at::Tensor& P, int64_t row_offset, const OrthonormalizeOptions& options) {
  const int64_t k = sketch_rows(P.size(2), options.oversample);
  const at::Tensor S = at::empty({k, P.size(1)}, P.options());
  sketch_(S, options.random, 0, row_offset, 1 / std::sqrt(static_cast<double>(k)));
  const at::Tensor product = at::empty({P.size(0), k, P.size(2)}, P.options());
  gemm_(Matrices(product), Matrices(S.unsqueeze(0).expand({P.size(0), k, P.size(1)})), Matrices(P), 1, 0);
  return product;
}

// The matrices whose QR left some column with less than `tolerance` of its length on the diagonal of R.
std::vector<int64_t> deficient(const at::Tensor& R, const at::Tensor& norms, double tolerance) {
  const at::Tensor diagonal = R.diagonal(0, -2, -1).abs();
  const at::Tensor found = diagonal.le(norms.slice(-1, 0, diagonal.size(-1)) * tolerance).any(-1);
  std::vector<int64_t> indices;
  for (int64_t i = 0; i < found.size(0); ++i) {
    if (found[i].item<bool>() || R.size(-2) < R.size(-1)) indices.push_back(i);
  }
  return indices;
}

}  // namespace

comm::Task<> rcqr_(at::Tensor P, Axis rows, int64_t row_offset, int64_t global_rows, OrthonormalizeOptions options) {
  at::Tensor SP = sketched(P, row_offset, options);
  co_await comm::all_reduce(SP, rows);
  const TriangularInverse first = sketch_qr_inverse(SP, options.tolerance);
  multiply_triangular_(Matrices(P), first);
  at::Tensor H = gram(Matrices(P));
  co_await comm::all_reduce(H, rows);
  // What is left to do is rounding: no column that survived the first factor can lose its signal now.
  at::Tensor residual = at::ones({P.size(0), P.size(2)}, at::kDouble);
  const TriangularInverse second = cholesky_inverse(H, residual, true, global_rows, P.scalar_type(), 0);
  multiply_triangular_(Matrices(P), second);
}

comm::Task<> householder_qr_(at::Tensor P, Axis rows, int64_t global_rows, double tolerance) {
  TORCH_CHECK_NOT_IMPLEMENTED(rows.size == 1, "torchdion: orthonormalize='qr' needs whole columns of P, but ", rows.size,
                              " ranks share its rows; use 'auto', 'rcqr' or 'cholesky_qr'");
  const std::tuple<at::Tensor, at::Tensor> qr = at::linalg_qr(P, "reduced");
  const at::Tensor norms = at::linalg_vector_norm(P, 2, {1}, false);
  const std::vector<int64_t> robustly = deficient(std::get<1>(qr), norms, tolerance);
  std::vector<at::Tensor> originals;
  for (int64_t index : robustly) originals.push_back(P[index].clone());
  if (robustly.size() < static_cast<std::size_t>(P.size(0))) P.copy_(std::get<0>(qr));
  for (std::size_t i = 0; i < robustly.size(); ++i) {
    at::Tensor one = originals[i].unsqueeze(0);
    co_await cholesky_qr_(one, rows, global_rows, tolerance);
    P[robustly[i]].copy_(one[0]);
  }
}

comm::Task<> orthonormalize_(at::Tensor P, Axis rows, int64_t row_offset, int64_t global_rows,
                             OrthonormalizeOptions options) {
  // A sketch with as many rows as P has would save nothing.
  const bool sketch_is_smaller = sketch_rows(P.size(2), options.oversample) < global_rows;
  if (options.method == Orthonormalize::qr) {
    co_await householder_qr_(P, rows, global_rows, options.tolerance);
  } else if (options.method == Orthonormalize::rcqr && sketch_is_smaller) {
    co_await rcqr_(P, rows, row_offset, global_rows, options);
  } else {
    co_await cholesky_qr_(P, rows, global_rows, options.tolerance);
  }
}

}  // namespace torchdion::linalg
