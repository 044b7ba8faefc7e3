#include "linalg/cholesky_qr.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/tril_indices.h>

#include <limits>

#include "linalg/backend.h"
#include "linalg/copy.h"
#include "linalg/triangular_inverse.h"

namespace torchdion::linalg {

namespace {

// A condition number of 1/ε needs three passes in FP64 and one in FP32; the others are for rounding.
constexpr int kMaxPasses = 5;

// P's columns come out orthonormal to about ε · amplification. FP64 data asks for more than FP64 Grams give at once.
double settled_amplification(at::ScalarType dtype) { return dtype == at::kDouble ? 1.5 : 8; }

std::vector<int64_t> unsettled(const TriangularInverse& factor, double settled) {
  std::vector<int64_t> indices;
  for (std::size_t i = 0; i < factor.amplification.size(); ++i) {
    if (factor.amplification[i] > settled) indices.push_back(static_cast<int64_t>(i));
  }
  return indices;
}

// Where the entries of the lower triangle lie in an r×r matrix, row by row: all of a symmetric matrix that has to be
// sent.
at::Tensor places_of_lower(const at::Tensor& H) {
  const int64_t r = H.size(1);
  const at::Tensor places = at::tril_indices(r, r, 0, H.options().dtype(at::kLong));
  return places[0].mul(r).add_(places[1]);
}

// Powers of two that bring columns whose squared lengths these are ([count, r] FP64) near 1, where FP32 asks for it.
at::Tensor exponents_of(const at::Tensor& squares) {
  constexpr double kLargestExponent = 40;
  const at::Tensor exponents = squares.log2().div_(2).floor_();
  const at::Tensor as_they_are = exponents.abs().le(kLargestExponent).logical_or_(squares.isfinite().logical_not_());
  return exponents.masked_fill_(as_they_are.logical_or_(squares.eq(0)), 0).to(at::kInt);
}

// Each entry of H, FP64, times the powers of its column and row.
at::Tensor scaled(const at::Tensor& H, const at::Tensor& exponents) {
  const at::Tensor powers = exponents.to(at::kDouble).exp2_();
  return H.mul(powers.unsqueeze(1)).mul_(powers.unsqueeze(2));
}

// Each rank's columns are scaled by exponents of its own, which are undefined where none is: H as if they were not.
at::Tensor as_given(const at::Tensor& H, const at::Tensor& exponents) {
  return exponents.defined() ? scaled(H.to(at::kDouble), exponents) : H.to(at::kDouble);
}

// H of all ranks, scaled as all of them agree on; each learns how its own columns differ from that.
at::Tensor as_agreed(const at::Tensor& H, CholeskyPass& state) {
  if (!state.exponents.defined()) return H;
  const at::Tensor agreed = exponents_of(H.diagonal(0, -2, -1));
  state.shift = state.exponents.sub(agreed);
  state.exponents = agreed;
  return scaled(H, agreed.neg());
}

at::Tensor rows_of(const at::Tensor& tensor, const std::vector<int64_t>& indices) {
  return tensor.index_select(0, at::tensor(indices, tensor.options().dtype(at::kLong)));
}

}  // namespace

int passes_over_axis(at::ScalarType dtype) { return dtype == at::kDouble ? 3 : 2; }

comm::Task<> cholesky_qr_(at::Tensor P, Axis rows, int64_t global_rows, CholeskyQrOptions options) {
  CholeskyPass first{.rows = global_rows, .given = options.noise};
  const int passes = passes_over_axis(P.scalar_type());
  co_await cholesky_passes_(P, rows, passes, first, options);
}

comm::Task<> cholesky_passes_(at::Tensor P, Axis rows, int passes, CholeskyPass first, CholeskyQrOptions options) {
  const bool in_place = backend_of(P.device()).multiplies_in_place;
  const at::ScalarType stored = factor_dtype(P.device(), P.scalar_type(), options.precision);
  const at::Tensor own = stored == P.scalar_type() ? P : at::empty(P.sizes(), P.options().dtype(stored));
  if (stored != P.scalar_type()) copy_(Matrices(own), Matrices(P));
  at::Tensor other = in_place ? own : at::Tensor();
  Matrices active(own), product(own);
  CholeskyPass state = first;
  state.dtype = stored;
  state.precision = options.precision;
  state.counts.in_margin = options.counts.in_margin;
  // A GPU's host does not wait to learn whether further passes are of use.
  const bool may_settle = rows.absent() && in_place;
  if (may_settle) passes = kMaxPasses;
  for (int pass = 0; pass < passes; ++pass) {
    const bool is_last = pass == passes - 1;
    state.settled = is_last ? std::numeric_limits<double>::infinity() : settled_amplification(P.scalar_type());
    state.counts.without_signal = may_settle || is_last ? options.counts.without_signal : nullptr;
    state.exponents = state.shift = at::Tensor();
    at::Tensor H = gram(active, options.precision, state.noise.defined() ? nullptr : &state.exponents);
    if (!rows.absent()) {
      const at::Tensor whole = as_given(H, state.exponents), places = places_of_lower(whole);
      at::Tensor triangles = whole.flatten(1).index_select(1, places);
      co_await comm::sum(triangles, rows, options.order);
      whole.flatten(1).index_copy_(1, places, triangles);
      H = as_agreed(whole, state).to(H.scalar_type());
    }
    const TriangularInverse factor = cholesky_inverse(std::move(H), state);
    if (!other.defined()) {  // not before what the factorization needed is free again
      other = at::empty_like(own);
      product = Matrices(other);
    }
    multiply_triangular_(product, active, factor, options.precision);
    std::swap(active, product);
    if (!may_settle) continue;
    const std::vector<int64_t> again = unsettled(factor, state.settled);
    if (again.empty()) break;
    if (again.size() == factor.amplification.size()) continue;
    active = active.select(again);
    product = product.select(again);
    state.noise = rows_of(state.noise, again);
    if (state.shares.defined()) state.shares = rows_of(state.shares, again);
  }
  const at::Tensor result = !in_place && passes % 2 == 1 ? other : own;
  if (!result.is_same(P)) copy_(Matrices(P), Matrices(result));
}

}  // namespace torchdion::linalg
