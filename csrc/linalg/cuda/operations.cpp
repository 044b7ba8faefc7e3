#include "linalg/cuda/operations.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "linalg/cuda/runtime.h"
#include "linalg/cuda/tensors.h"

namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE {

namespace {

at::Tensor doubles(at::IntArrayRef sizes, c10::Device device) {
  return at::empty(sizes, at::TensorOptions(at::kDouble).device(device));
}

// Null of what is undefined.
const void* data_of(const at::Tensor& tensor) { return tensor.defined() ? tensor.const_data_ptr() : nullptr; }
template <class T>
const T* data_of(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr<T>() : nullptr;
}

}  // namespace

void Operations::copy_(const Matrices& A, const Matrices& B, double alpha, const Frozen& frozen) {
  if (!A.row_major()) return copy_(A.t(), B.t(), alpha, frozen);
  kernels::copy(Listed(A), Listed(B), alpha, frozen, stream_of(A.device));
}

void Operations::clear_(const Matrices& A, const Frozen& frozen) {
  if (!A.row_major()) return clear_(A.t(), frozen);
  kernels::clear(Listed(A), frozen, stream_of(A.device));
}

void Operations::accumulate_(const Matrices& M, const Matrices& G, const GradientRule& rule) {
  if (!M.row_major()) return accumulate_(M.t(), G.t(), rule);
  kernels::accumulate(Listed(M), Listed(G), rule, stream_of(M.device));
}

at::Tensor Operations::look_ahead_(const Matrices& L, const Matrices& M, const Matrices& G, const GradientRule& rule,
                                   const LookAheadFactors& ahead, bool sums_squares) {
  if (!M.row_major()) return look_ahead_(L.t(), M.t(), G.t(), rule, ahead, sums_squares);
  at::Tensor squares;
  if (sums_squares) squares = doubles({M.count(), kernels::parts_of(M.rows, M.cols)}, M.device);
  kernels::look_ahead(Listed(L), Listed(M), Listed(G), rule, ahead,
                      sums_squares ? squares.mutable_data_ptr<double>() : nullptr, stream_of(M.device));
  return squares;
}

void Operations::axpby_(const Matrices& X, const Matrices& U, const at::Tensor& factors, const DirectionRule& rule,
                        const RowRule& rows, const at::Tensor& scales) {
  const bool across = !X.row_major();
  const Matrices x = across ? X.t() : X, u = across ? U.t() : U;
  if (!rows.source.defined() && !rows.factor.defined()) {
    return kernels::axpby(Listed(x), Listed(u), factors.const_data_ptr(), rule, data_of(scales), stream_of(X.device));
  }
  kernels::axpby_rows(Listed(x), Listed(u), factors.const_data_ptr(), rule, data_of<int32_t>(rows.source),
                      data_of(rows.factor), across, U.rows * U.cols, stream_of(X.device));
}

at::Tensor Operations::row_sums(const Matrices& A, RowSum kind) {
  const at::Tensor sums = doubles({A.count(), A.rows}, A.device);
  kernels::row_sums(Listed(A), kind, sums.mutable_data_ptr<double>(), stream_of(A.device));
  return sums;
}

at::Tensor Operations::accumulate_row_sums_(const Matrices& M, const Matrices& G, const GradientRule& rule) {
  const Listed m(M), g(G);
  if (!kernels::accumulates_row_sums(m, g)) {
    accumulate_(M, G, rule);
    return row_sums(M, RowSum::magnitudes);
  }
  const at::Tensor sums = doubles({M.count(), M.rows}, M.device);
  kernels::accumulate_row_sums(m, g, rule, sums.mutable_data_ptr<double>(), stream_of(M.device));
  return sums;
}

ChosenRows Operations::choose_rows(const at::Tensor& norms, int64_t k) {
  const int64_t count = norms.size(0), rows = norms.size(1);
  const auto options = norms.options().dtype(at::kInt);
  const ChosenRows chosen{at::empty({count, k}, options), at::empty({count, rows}, options)};
  kernels::choose_rows(chosen.rows.mutable_data_ptr<int32_t>(), chosen.slots.mutable_data_ptr<int32_t>(),
                       norms.const_data_ptr<double>(), count, rows, k, stream_of(norms.device()));
  return chosen;
}

void Operations::take_rows_(const Matrices& A, const Matrices& B, const at::Tensor& rows, const RowDecay& decay) {
  kernels::take_rows(Listed(A), Listed(B), rows.const_data_ptr<int32_t>(), decay, stream_of(A.device));
}

RowFactors Operations::row_factors_(const at::Tensor& squares, const Matrices& v, const at::Tensor& source,
                                    const VarianceRule& rule) {
  const RowFactors rows{at::empty({v.count(), v.rows}, squares.options()),
                        at::empty({v.count(), 2}, squares.options())};
  kernels::row_variances(Listed(v), squares.const_data_ptr<double>(), squares.size(1), data_of<int32_t>(source), rule,
                         rows.factors.mutable_data_ptr<double>(), rows.norms.mutable_data_ptr<double>(),
                         stream_of(v.device));
  return rows;
}

at::Tensor Operations::keep_norms(const RowFactors& rows, at::ScalarType dtype) {
  const int64_t count = rows.factors.size(0), many = rows.factors.size(1);
  const at::Tensor out = at::empty({count, many}, rows.factors.options().dtype(dtype));
  kernels::keep_norms(entries(out), rows.factors.const_data_ptr<double>(), rows.norms.const_data_ptr<double>(), count,
                      many, stream_of(out.device()));
  return out;
}

void Operations::decay_rows_(const Matrices& B, const at::Tensor& rows, const RowDecay& decay) {
  const MatrixList none{nullptr, storage_of(B.dtype), {}, B.count(), rows.size(1), B.cols};
  kernels::take_rows(none, Listed(B), rows.const_data_ptr<int32_t>(), decay, stream_of(B.device));
}

at::Tensor Operations::frobenius_normalize_(const at::Tensor& X, double slack, const at::Tensor& squares) {
  const at::Tensor sums = squares.defined() ? squares : row_sums(Matrices(X), RowSum::squares);
  const at::ScalarType dtype = X.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor factors = at::empty({X.size(0)}, X.options().dtype(dtype));
  kernels::frobenius_factors(entries(X), X.size(0), X.size(1) * X.size(2), sums.const_data_ptr<double>(), sums.size(1),
                             slack, factors.mutable_data_ptr(), stream_of(X.device()));
  return factors;
}

void Operations::add_identity_(const at::Tensor& B, const at::Tensor& A, double a, const at::Tensor& factors,
                               int power) {
  kernels::add_identity(entries(B), entries(A), A.size(0), A.size(1), a, data_of(factors), power,
                        stream_of(A.device()));
}

void Operations::count_nonfinite(const Matrices& G, int64_t* found) {
  if (!G.row_major()) return count_nonfinite(G.t(), found);
  kernels::count_nonfinite(Listed(G), found, stream_of(G.device));
}

void Operations::top_k(const at::Tensor& chosen, const at::Tensor& rows) {
  kernels::top_k(entries(chosen), entries(rows), rows.size(0), rows.size(1), chosen.size(2), stream_of(rows.device()));
}

at::Tensor Operations::device_factors(const FactorRule& rule, at::TensorOptions options) {
  const at::Tensor factors = at::empty({2}, options);
  kernels::step_factors(entries(factors), rule.shape_factor, device_rates(rule), rule.frozen,
                        stream_of(factors.device()));
  return factors;
}

void Operations::share_out(c10::Device /*device*/, int64_t count, const Need& /*need*/,
                           const std::function<void(const Share&)>& body) {
  body({0, count, count});
}

bool Operations::is_capturing(c10::Device device) {
  return linalg::TORCHDION_CUDA_NAMESPACE::is_capturing(device.index());
}

at::Tensor Operations::column_square_sums(const Matrices& R) {
  at::Tensor memory;
  const Matrices by_rows = with_contiguous_rows(R, memory);
  const at::Tensor sums = doubles({R.count(), R.cols}, R.device);
  kernels::column_square_sums(Listed(by_rows), sums.mutable_data_ptr<double>(), stream_of(R.device));
  return sums;
}

void Operations::column_normalize_(const Matrices& Q, const Matrices& R, const at::Tensor& square_sums,
                                   const NormalizedOutputs& outputs) {
  at::Tensor q_memory, r_memory;
  const Matrices q = with_contiguous_rows(Q, q_memory), r = with_contiguous_rows(R, r_memory);
  kernels::column_normalize(
      Listed(q), Listed(r), data_of<double>(square_sums),
      {outputs.update.defined() ? outputs.update.mutable_data_ptr() : nullptr,
       outputs.update.defined() && outputs.update.scalar_type() == at::kBFloat16,
       outputs.copy_of_R.defined() ? outputs.copy_of_R.mutable_data_ptr() : nullptr, data_of(outputs.scales)},
      stream_of(R.device));
  if (q_memory.defined()) copy_(Q, q, 1, {});
}

at::Tensor Operations::residual_scales(const at::Tensor& squares, double least, at::TensorOptions options) {
  const at::Tensor scales = at::empty({squares.size(0)}, options);
  kernels::residual_scales(entries(scales), squares.const_data_ptr<double>(), squares.size(0), squares.size(1), least,
                           stream_of(squares.device()));
  return scales;
}

namespace {

FloorOfSigns floor_of(const SignFloor& floor) {
  return {floor.of_entries, floor.of_factors, data_of<double>(floor.left), data_of<double>(floor.right)};
}

}  // namespace

void Operations::take_signs_(const Matrices& U, const Matrices& L, double feedback, const SignFloor& floor) {
  if (!U.row_major()) return take_signs_(U.t(), L.t(), feedback, floor.t());
  kernels::take_signs(Listed(U), Listed(L), feedback, floor_of(floor), stream_of(U.device));
}

namespace {

bool are(at::ScalarType dtype, std::initializer_list<const Matrices*> all) {
  return std::ranges::all_of(all, [&](const Matrices* one) { return one->dtype == dtype && one->row_major(); });
}

// True where ProductTile reads factors in the dtype of L.
bool are_factors(const Matrices& L, std::initializer_list<const Matrices*> all) {
  const bool is_operand = L.dtype == at::kBFloat16 || L.dtype == at::kFloat;
  const int64_t at_once = 16 / static_cast<int64_t>(c10::elementSize(L.dtype));
  const auto has_runs = [&](const Matrices* one) {
    return one->row_major() && one->cols % at_once == 0 && one->row_stride % at_once == 0;
  };
  return is_operand && L.row_major() && std::ranges::all_of(all, has_runs) && kernels::adds_products(L.device.index());
}

// A factor, which is copied where it has another dtype or does not begin at a multiple of 16 bytes.
class ListedFactor {
 public:
  ListedFactor(const Matrices& factor, at::ScalarType dtype)
      : list_(aligned(stored_as(dtype, factor, copies_), /*as_stack=*/false, aligned_)) {}
  operator MatrixList() const { return list_; }

 private:
  at::Tensor copies_, aligned_;
  Listed list_;
};

}  // namespace

bool Operations::move_by_scaled_(const ScaledMove& move) {
  if (!are(at::kFloat, {&move.X}) || !are_factors(move.L, {&move.P, &move.U})) return false;
  const Listed X(move.X), L(move.L);
  const ListedFactor P(move.P, move.L.dtype), U(move.U, move.L.dtype);
  kernels::move_by_scaled(
      {X, L, P, U, move.factors.const_data_ptr<float>(), move.scales.const_data_ptr<float>(), move.rule},
      stream_of(move.X.device));
  return true;
}

bool Operations::move_by_signs_(const SignMove& move) {
  if (!are(at::kFloat, {&move.X}) || (move.feedback != 0 && !are(at::kFloat, {&move.M})) ||
      !are_factors(move.L, {&move.P1, &move.R, &move.P2, &move.V})) {
    return false;
  }
  const Listed X(move.X), M(move.M), L(move.L.data == move.M.data ? move.M : move.L);
  const ListedFactor P1(move.P1, move.L.dtype), R(move.R, move.L.dtype), P2(move.P2, move.L.dtype),
      V(move.V, move.L.dtype);
  kernels::move_by_signs({X, M, L, P1, R, P2, V, move.factors.const_data_ptr<float>(), move.rule, move.weight,
                          move.feedback, floor_of(move.floor)},
                         stream_of(move.X.device));
  return true;
}

void Operations::sketch_(const at::Tensor& out, RandomMatrix random, int64_t row_offset, int64_t col_offset,
                         double standard_deviation) {
  const int64_t rows = out.size(-2), cols = out.size(-1);
  const SketchPlace place{out.numel() / (rows * cols),
                          rows,
                          cols,
                          row_offset,
                          col_offset,
                          static_cast<uint64_t>(random.seed),
                          static_cast<uint64_t>(random.stream),
                          random.steps_before};
  kernels::sketch(entries(out), place, standard_deviation, stream_of(out.device()));
}

}  // namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE
