#include "linalg/backend.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <array>

#include "comm/trace.h"
#include "linalg/cpu/operations.h"
#include "linalg/factor_dtypes.h"
#ifdef TORCHDION_WITH_CUDA
#include "linalg/cuda/operations.h"
#endif

namespace torchdion::linalg {

namespace {

std::array<const Backend*, c10::COMPILE_TIME_MAX_DEVICE_TYPES>& backends() {
  static std::array<const Backend*, c10::COMPILE_TIME_MAX_DEVICE_TYPES> all = [] {
    std::array<const Backend*, c10::COMPILE_TIME_MAX_DEVICE_TYPES> known{};
    known[static_cast<std::size_t>(c10::kCPU)] = &backend_made_of<cpu::Operations>();
#ifdef TORCHDION_WITH_CUDA
    known[static_cast<std::size_t>(c10::kCUDA)] = &backend_made_of<cuda::Operations>();
#endif
    return known;
  }();
  return all;
}

}  // namespace

const Backend& backend_of(c10::Device device) {
  const Backend* backend = backends()[static_cast<std::size_t>(device.type())];
  TORCH_CHECK_NOT_IMPLEMENTED(backend, "torchdion: this build has no kernels for ", device.type(),
                              device.is_cuda() ? ": no nvcc was found when it was compiled" : "");
  return *backend;
}

bool has_backend(c10::DeviceType type) { return backends()[static_cast<std::size_t>(type)] != nullptr; }

Precision precision_on(c10::Device device, Precision precision) {
  return backend_of(device).nearest_precision(precision);
}

at::ScalarType factor_dtype(c10::Device device, at::ScalarType dtype, Precision precision) {
  if (!has_backend(device.type())) return factor_dtype_on_gpu(dtype, precision);
  return backend_of(device).factor_dtype(dtype, precision);
}

at::ScalarType sum_dtype(c10::Device device, at::ScalarType dtype, Precision precision) {
  return backend_of(device).sum_dtype(dtype, precision);
}

bool moves_in_one_pass(c10::Device device, at::ScalarType factors, Precision precision) {
  if (!has_backend(device.type())) return is_rounded_on_gpu(factors, precision);
  return backend_of(device).moves_in_one_pass(factors, precision);
}

bool iterates_on_gram(c10::Device device) { return !has_backend(device.type()) || backend_of(device).iterates_on_gram; }

const Backend* exchange_backend(c10::DeviceType type, const Backend* backend) {
  return std::exchange(backends()[static_cast<std::size_t>(type)], backend);
}

void upload(const std::vector<Matrices*>& lists) {
  if (!lists.empty()) backend_of(lists.front()->device).upload(lists);
}

void copy_(const Matrices& A, const Matrices& B, double alpha, const Frozen& frozen) {
  if (A.numel() > 0) backend_of(A.device).copy_(A, B, alpha, frozen);
}

void clear_(const Matrices& A, const Frozen& frozen) {
  if (A.numel() > 0) backend_of(A.device).clear_(A, frozen);
}

void accumulate_(const Matrices& M, const Matrices& G, const GradientRule& rule) {
  if (M.numel() > 0) backend_of(M.device).accumulate_(M, G, rule);
}

at::Tensor look_ahead_(const Matrices& L, const Matrices& M, const Matrices& G, const GradientRule& rule,
                       const LookAheadFactors& ahead, bool sums_squares) {
  if (M.numel() == 0) return {};
  return backend_of(M.device).look_ahead_(L, M, G, rule, ahead, sums_squares);
}

void axpby_(const Matrices& X, const Matrices& U, const at::Tensor& factors, const DirectionRule& rule,
            const RowRule& rows, const at::Tensor& scales) {
  if (X.numel() > 0) backend_of(X.device).axpby_(X, U, factors, rule, rows, scales);
}

at::Tensor row_sums(const Matrices& A, RowSum kind) {
  if (A.numel() > 0) return backend_of(A.device).row_sums(A, kind);
  return at::zeros({A.count(), A.rows}, at::TensorOptions(at::kDouble).device(A.device));
}

at::Tensor accumulate_row_sums_(const Matrices& M, const Matrices& G, const GradientRule& rule) {
  if (M.numel() > 0) return backend_of(M.device).accumulate_row_sums_(M, G, rule);
  return row_sums(M, RowSum::magnitudes);
}

ChosenRows choose_rows(const at::Tensor& norms, int64_t k) { return backend_of(norms.device()).choose_rows(norms, k); }

void take_rows_(const Matrices& A, const Matrices& B, const at::Tensor& rows, const RowDecay& decay) {
  if (A.numel() > 0) backend_of(A.device).take_rows_(A, B, rows, decay);
}

RowFactors row_factors_(const at::Tensor& squares, const Matrices& v, const at::Tensor& source,
                        const VarianceRule& rule) {
  return backend_of(v.device).row_factors_(squares, v, source, rule);
}

at::Tensor keep_norms(const RowFactors& rows, at::ScalarType dtype) {
  return backend_of(rows.factors.device()).keep_norms(rows, dtype);
}

void decay_rows_(const Matrices& B, const at::Tensor& rows, const RowDecay& decay) {
  if (B.numel() > 0) backend_of(B.device).decay_rows_(B, rows, decay);
}

at::Tensor frobenius_normalize_(const at::Tensor& X, double slack, const at::Tensor& squares) {
  return X.numel() > 0 ? backend_of(X.device()).frobenius_normalize_(X, slack, squares) : at::Tensor();
}

void add_identity_(const at::Tensor& B, const at::Tensor& A, double a, const at::Tensor& factors, int power) {
  if (A.numel() > 0) backend_of(A.device()).add_identity_(B, A, a, factors, power);
}

void count_nonfinite(const Matrices& G, int64_t* found) {
  if (G.numel() > 0) backend_of(G.device).count_nonfinite(G, found);
}

void top_k(const at::Tensor& chosen, const at::Tensor& entries) {
  if (chosen.numel() > 0) backend_of(entries.device()).top_k(chosen, entries);
}

at::Tensor device_factors(const FactorRule& rule, at::TensorOptions options) {
  return backend_of(options.device()).device_factors(rule, options);
}

void gemm_(const Matrices& C, const Matrices& A, const Matrices& B, const Factor& alpha, const Factor& beta,
           Precision precision) {
  comm::note("gemm");
  if (C.numel() > 0) backend_of(C.device).gemm_(C, A, B, alpha, beta, precision);
}

void addmm_(const Matrices& C, const Matrices& D, const Matrices& A, const Matrices& B, double alpha, double beta,
            Precision precision, bool symmetric) {
  comm::note("addmm");
  if (C.numel() > 0) backend_of(C.device).addmm_(C, D, A, B, alpha, beta, precision, symmetric);
}

at::Tensor column_square_sums(const Matrices& R) { return backend_of(R.device).column_square_sums(R); }

void column_normalize_(const Matrices& Q, const Matrices& R, const at::Tensor& square_sums,
                       const NormalizedOutputs& outputs) {
  if (Q.numel() > 0) backend_of(Q.device).column_normalize_(Q, R, square_sums, outputs);
}

at::Tensor residual_scales(const at::Tensor& squares, double least, at::TensorOptions options) {
  if (squares.size(0) == 0) return at::empty({0}, options);  // a rank may have none of the matrices
  return backend_of(squares.device()).residual_scales(squares, least, options);
}

void take_signs_(const Matrices& U, const Matrices& L, double feedback, const SignFloor& floor) {
  if (U.numel() > 0) backend_of(U.device).take_signs_(U, L, feedback, floor);
}

bool move_by_signs_(const SignMove& move) {
  return move.X.numel() > 0 && backend_of(move.X.device).move_by_signs_(move);
}

bool move_by_scaled_(const ScaledMove& move) {
  return move.X.numel() > 0 && backend_of(move.X.device).move_by_scaled_(move);
}

void sketch_(const at::Tensor& out, RandomMatrix random, int64_t row_offset, int64_t col_offset,
             double standard_deviation) {
  if (out.numel() > 0) backend_of(out.device()).sketch_(out, random, row_offset, col_offset, standard_deviation);
}

void round_operand_(const at::Tensor& P, Precision precision) {
  if (P.numel() > 0) backend_of(P.device()).round_operand_(P, precision);
}

at::Tensor gram(const Matrices& P, Precision precision, at::Tensor* exponents) {
  return backend_of(P.device).gram(P, precision, exponents);
}

TriangularInverse cholesky_inverse(at::Tensor gram, CholeskyPass& pass) {
  const Backend& backend = backend_of(gram.device());
  return backend.cholesky_inverse(std::move(gram), pass);
}

void multiply_triangular_(const Matrices& out, const Matrices& P, const TriangularInverse& factor,
                          Precision precision) {
  if (P.numel() > 0) backend_of(P.device).multiply_triangular_(out, P, factor, precision);
}

TriangularInverse sketch_qr_inverse(const at::Tensor& SP, Noise noise, at::ScalarType dtype, Precision precision,
                                    int64_t* in_margin) {
  return backend_of(SP.device()).sketch_qr_inverse(SP, noise, dtype, precision, in_margin);
}

void share_out(c10::Device device, int64_t count, const Need& need, const std::function<void(const Share&)>& body) {
  if (count > 0) backend_of(device).share_out(device, count, need, body);
}

void lion_(const ElementwiseLists& lists, const LionHyperparameters& hyper) {
  if (!lists.X.empty()) backend_of(lists.X.front().device()).lion_(lists, hyper);
}

void adamw_(const ElementwiseLists& lists, const AdamWHyperparameters& hyper) {
  if (!lists.X.empty()) backend_of(lists.X.front().device()).adamw_(lists, hyper);
}

}  // namespace torchdion::linalg
