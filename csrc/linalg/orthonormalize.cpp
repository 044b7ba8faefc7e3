#include "linalg/orthonormalize.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/linalg_qr.h>
#include <ATen/ops/linalg_solve_triangular.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/zeros.h>

#include <cmath>

#include "linalg/backend.h"
#include "linalg/cholesky_qr.h"
#include "linalg/copy.h"
#include "linalg/gemm.h"
#include "linalg/triangular_inverse.h"

namespace torchdion::linalg {

namespace {

// The paper's k: a double, because any finite oversampling is allowed and most make no sketch.
double paper_rows(int64_t r, double oversample) { return std::ceil(oversample * static_cast<double>(r)); }

// A sketch with as many rows as P has would save nothing.
bool saves(int64_t r, double oversample, int64_t global_rows) {
  return paper_rows(r, oversample) < static_cast<double>(global_rows);
}

// Gram matrices of what a sketch has made nearly orthonormal. FP64 shows what one leaves of a condition number of 20,
// and a square sketch has one of 1000.
int passes_after_sketch(double oversample, at::ScalarType dtype) {
  return dtype == at::kDouble || oversample < 1.25 ? 2 : 1;
}

// Of the paper's k rows a second Gram matrix takes one, so that both send no more than the paper's whole one.
int64_t sketch_rows(int64_t r, double oversample, at::ScalarType dtype) {
  const auto k = static_cast<int64_t>(paper_rows(r, oversample));
  return passes_after_sketch(oversample, dtype) > 1 && k > r ? k - 1 : k;
}

// S P, in the dtype of sums, for the S of the step, of which this rank draws the columns that meet its rows of P.
at::Tensor sketched(const at::Tensor& P, int64_t row_offset, const OrthonormalizeOptions& options) {
  const int64_t k = sketch_rows(P.size(2), options.oversample, P.scalar_type());
  const at::Tensor S = at::empty({k, P.size(1)}, P.options());
  sketch_(S, options.random, 0, row_offset, 1 / std::sqrt(static_cast<double>(k)));
  const at::ScalarType sums = sum_dtype(P.device(), P.scalar_type(), options.precision);
  const at::Tensor product = at::empty({P.size(0), k, P.size(2)}, P.options().dtype(sums));
  gemm_(Matrices(product), Matrices(S.unsqueeze(0).expand({P.size(0), k, P.size(1)})), Matrices(P), 1, 0,
        options.precision);
  return product;
}

// The matrices in whose QR some column may be rounding.
std::vector<int64_t> doubtful(const at::Tensor& P, const at::Tensor& R, Noise noise) {
  std::vector<int64_t> indices;
  const at::Tensor norms = at::linalg_vector_norm(P, 2, {1}, /*keepdim=*/true, at::kDouble);
  at::Tensor clear = at::zeros({P.size(0)}, P.options().dtype(at::kBool));
  if (P.size(1) >= P.size(2)) {
    const at::Tensor largest = relative_noise(norms.squeeze(1), noise).amax(-1, /*keepdim=*/true);
    const double allowed = 1 / (noise.margin * noise_left_of(P.size(1), 0).longest);
    clear = column_amplification(R.to(at::kDouble).div(norms)).mul(largest).lt(allowed).all(-1);
  }
  for (int64_t i = 0; i < clear.size(0); ++i) {
    if (!clear[i].item<bool>()) indices.push_back(i);
  }
  return indices;
}

}  // namespace

at::Tensor column_amplification(const at::Tensor& R) {
  const at::Tensor identity = at::eye(R.size(-1), R.options()).expand_as(R);
  return at::linalg_vector_norm(at::linalg_solve_triangular(R, identity, /*upper=*/true), 2, {-2});
}

comm::Task<> rcqr_(at::Tensor P, Axis rows, int64_t row_offset, int64_t global_rows, OrthonormalizeOptions options) {
  const at::ScalarType stored = factor_dtype(P.device(), P.scalar_type(), options.precision);
  const at::Tensor own = stored == P.scalar_type() ? P : at::empty(P.sizes(), P.options().dtype(stored));
  if (stored != P.scalar_type()) copy_(Matrices(own), Matrices(P));
  round_operand_(own, options.precision);
  at::Tensor SP = sketched(own, row_offset, options);
  co_await comm::sum(SP, rows, options.order);
  Noise noise = options.noise;
  noise.own += rounding_noise(SP.scalar_type(), global_rows);  // of the sketch
  const TriangularInverse first = sketch_qr_inverse(SP, noise, stored, options.precision, options.counts.in_margin);
  const bool in_place = backend_of(P.device()).multiplies_in_place;
  at::Tensor product = in_place ? own : at::empty_like(own);
  multiply_triangular_(Matrices(product), Matrices(own), first, options.precision);
  // No column that survived the first factor can lose its signal now.
  const CholeskyPass next{.rows = global_rows, .given = Noise{0, 0}};
  const int passes = passes_after_sketch(options.oversample, P.scalar_type());
  co_await cholesky_passes_(product, rows, passes, next, options);
  if (!product.is_same(P)) copy_(Matrices(P), Matrices(product));
}

comm::Task<> householder_qr_(at::Tensor P, Axis rows, int64_t global_rows, OrthonormalizeOptions options) {
  TORCH_CHECK_NOT_IMPLEMENTED(rows.absent(), "torchdion: orthonormalize='qr' needs whole columns of P, but ", rows.size,
                              " ranks share its rows; use 'auto', 'rcqr' or 'cholesky_qr'");
  const std::tuple<at::Tensor, at::Tensor> qr = at::linalg_qr(P, "reduced");
  Noise doubt = options.noise;
  doubt.own += rounding_noise(P.scalar_type(), global_rows);  // LAPACK adds its own
  const std::vector<int64_t> robustly = doubtful(P, std::get<1>(qr), doubt);
  std::vector<at::Tensor> originals;
  for (int64_t index : robustly) originals.push_back(P[index].clone());
  if (robustly.size() < static_cast<std::size_t>(P.size(0))) P.copy_(std::get<0>(qr));
  for (std::size_t i = 0; i < robustly.size(); ++i) {
    at::Tensor one = originals[i].unsqueeze(0);
    co_await cholesky_qr_(one, rows, global_rows, options);
    P[robustly[i]].copy_(one[0]);
  }
}

comm::Task<> orthonormalize_(at::Tensor P, Axis rows, int64_t row_offset, int64_t global_rows,
                             OrthonormalizeOptions options) {
  if (P.size(0) == 0 && rows.absent()) co_return;
  if (options.method == Orthonormalize::qr) {
    co_await householder_qr_(P, rows, global_rows, options);
  } else if (options.method == Orthonormalize::rcqr && saves(P.size(2), options.oversample, global_rows)) {
    co_await rcqr_(P, rows, row_offset, global_rows, options);
  } else {
    co_await cholesky_qr_(P, rows, global_rows, options);
  }
}

int64_t orthonormalize_elements(int64_t r, int64_t global_rows, Orthonormalize method, double oversample,
                                at::ScalarType dtype) {
  if (method == Orthonormalize::rcqr && saves(r, oversample, global_rows)) {
    return sketch_rows(r, oversample, dtype) * r + passes_after_sketch(oversample, dtype) * (r * (r + 1) / 2);
  }
  return passes_over_axis(dtype) * (r * (r + 1) / 2);
}

int64_t orthonormalize_operations(int64_t rows, int64_t r, int64_t global_rows, Orthonormalize method,
                                  double oversample, at::ScalarType dtype) {
  if (method == Orthonormalize::qr) return 2 * (2 * rows * r * r - 2 * r * r * r / 3);
  const int64_t pass = 3 * rows * r * r + r * r * r / 3;
  if (method == Orthonormalize::rcqr && saves(r, oversample, global_rows)) {
    const auto k = static_cast<int64_t>(std::ceil(oversample * static_cast<double>(r)));
    return 2 * k * rows * r + (2 * k * r * r - 2 * r * r * r / 3) + rows * r * r + pass;
  }
  return (dtype == at::kDouble ? 3 : 2) * pass;
}

int64_t orthonormalize_bytes_on_gpu(int64_t rows, int64_t r, Orthonormalize method, const FactorDtypes& dtypes) {
  constexpr int64_t kScratch = 10 * 64 * 64;  // entries of FactorGram's, a little more than it has
  const auto size = [](at::ScalarType dtype) { return static_cast<int64_t>(c10::elementSize(dtype)); };
  const int64_t parts = dtypes.sums == at::kFloat ? 2 : 1;
  const int64_t factors = (size(dtypes.sums) + parts * size(dtypes.stored)) * r * r;
  const int64_t others = method == Orthonormalize::rcqr ? 2 : 1, copies = dtypes.stored == dtypes.given ? 0 : 1;
  return size(dtypes.sums) * kScratch + others * factors + (others + copies) * rows * r * size(dtypes.stored);
}

}  // namespace torchdion::linalg
