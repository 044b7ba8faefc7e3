// torch.ops.torchdion.*: the linear algebra as operations of torch: schema, checks, kernels, and Meta kernels for
// torch.compile and fake tensors.
#include <ATen/ops/empty_like.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <cmath>

#include "comm/scheduler.h"

#include "linalg/backend.h"
#include "linalg/cholesky_qr.h"
#include "linalg/column_normalize.h"
#include "linalg/gemm.h"
#include "linalg/memory.h"
#include "linalg/orthonormalize.h"
#include "linalg/sketch.h"

namespace torchdion::linalg {

namespace {

void check_floating(const char* op, const char* name, const at::Tensor& tensor) {
  TORCH_CHECK_TYPE(at::isFloatingType(tensor.scalar_type()), "torchdion::", op, ": ", name,
                   " must be real floating-point, got ", tensor.scalar_type());
}

void check_matrices(const char* op, const char* name, const at::Tensor& tensor) {
  check_floating(op, name, tensor);
  TORCH_CHECK_VALUE(tensor.dim() >= 2, "torchdion::", op, ": ", name, " must be [..., rows, columns], got shape ",
                    tensor.sizes());
}

// What kernels ask for and Meta kernels do not.
void check_memory(const char* op, const char* name, const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(has_memory(tensor), "torchdion::", op, ": ", name,
                    " must have memory of its own, got a wrapped, fake or freed tensor");
}

at::Tensor column_normalize_meta(const at::Tensor& R, const at::Tensor& Q) {
  check_matrices("column_normalize", "R", R);
  check_floating("column_normalize", "Q", Q);
  TORCH_CHECK_VALUE(Q.sizes() == R.sizes(), "torchdion::column_normalize: Q must have R's shape ", R.sizes(), ", got ",
                    Q.sizes());
  return at::empty_like(Q, at::MemoryFormat::Contiguous);
}

at::Tensor column_normalize(const at::Tensor& R, const at::Tensor& Q) {
  const c10::DeviceGuard guard(R.device());
  at::Tensor normalized = column_normalize_meta(R, Q);
  check_memory("column_normalize", "R", R);
  check_memory("column_normalize", "Q", Q);
  normalized.copy_(Q);
  if (R.numel() > 0) column_normalize_(Matrices(normalized), Matrices(R));
  return normalized;
}

Orthonormalize parse_method(c10::string_view method) {
  if (method == "auto") return Orthonormalize::automatic;
  if (method == "rcqr") return Orthonormalize::rcqr;
  if (method == "cholesky_qr") return Orthonormalize::cholesky_qr;
  if (method == "qr") return Orthonormalize::qr;
  TORCH_CHECK_VALUE(false, "torchdion::orthonormalize: method must be 'auto', 'rcqr', 'cholesky_qr' or 'qr', got '",
                    method, "'");
}

Precision parse_precision(const char* op, c10::string_view precision) {
  if (precision == "highest") return Precision::highest;
  if (precision == "high") return Precision::high;
  if (precision == "medium") return Precision::medium;
  TORCH_CHECK_VALUE(false, "torchdion::", op, ": precision must be 'highest', 'high' or 'medium', got '", precision,
                    "'");
}

at::Tensor orthonormalize_meta(const at::Tensor& P, c10::string_view method, double oversample, int64_t /*seed*/,
                               int64_t /*step*/, std::optional<double> noise, c10::string_view precision) {
  check_matrices("orthonormalize", "P", P);
  parse_method(method);
  parse_precision("orthonormalize", precision);
  TORCH_CHECK_VALUE(oversample >= 1 && std::isfinite(oversample),
                    "torchdion::orthonormalize: oversample must be a finite number ≥ 1, got ", oversample);
  TORCH_CHECK_VALUE(!noise || (*noise >= 0 && *noise < 1), "torchdion::orthonormalize: noise must be in [0, 1), got ",
                    *noise);
  return at::empty_like(P, at::MemoryFormat::Contiguous);
}

at::Tensor orthonormalize(const at::Tensor& P, c10::string_view method, double oversample, int64_t seed, int64_t step,
                          std::optional<double> noise, c10::string_view precision) {
  const c10::DeviceGuard guard(P.device());
  at::Tensor result = orthonormalize_meta(P, method, oversample, seed, step, noise, precision);
  if (P.numel() == 0) return result;
  check_memory("orthonormalize", "P", P);
  const at::ScalarType dtype = compute_dtype({P.scalar_type()});
  const Precision rounded = precision_on(P.device(), parse_precision("orthonormalize", precision));
  const int64_t m = P.size(-2), r = P.size(-1);
  at::Tensor batch = P.to(dtype, /*non_blocking=*/false, /*copy=*/true).contiguous().view({-1, m, r});
  OrthonormalizeOptions options;
  options.method = parse_method(method);
  options.oversample = oversample;
  options.random = RandomMatrix::sketch(seed, step);
  options.noise = {noise.value_or(rounding_noise(dtype, 0, rounded))};
  options.precision = rounded;
  comm::run(orthonormalize_(batch, Axis(), 0, m, options));
  return result.copy_(batch.view(P.sizes()));
}

at::Tensor cholesky_qr_meta(const at::Tensor& P, std::optional<double> noise) {
  return orthonormalize_meta(P, "cholesky_qr", 1, 0, 0, noise, "highest");
}

at::Tensor cholesky_qr(const at::Tensor& P, std::optional<double> noise) {
  return orthonormalize(P, "cholesky_qr", 1, 0, 0, noise, "highest");
}

void sketch_meta(at::Tensor& out, int64_t /*seed*/, int64_t /*step*/, int64_t row_offset, int64_t column_offset) {
  check_floating("sketch_", "out", out);
  TORCH_CHECK_VALUE(out.dim() == 2, "torchdion::sketch_: out must be [rows, columns], got shape ", out.sizes());
  TORCH_CHECK_VALUE(row_offset >= 0 && column_offset >= 0, "torchdion::sketch_: offsets must not be negative, got ",
                    row_offset, " and ", column_offset);
}

void sketch(at::Tensor& out, int64_t seed, int64_t step, int64_t row_offset, int64_t column_offset) {
  const c10::DeviceGuard guard(out.device());
  sketch_meta(out, seed, step, row_offset, column_offset);
  check_memory("sketch_", "out", out);
  const at::Tensor contiguous = out.contiguous();
  sketch_(contiguous, RandomMatrix::sketch(seed, step), row_offset, column_offset, 1);
  if (!contiguous.is_same(out)) out.copy_(contiguous);
}

void check_alike(const char* name, at::TensorList list) {
  for (const at::Tensor& tensor : list) {
    check_floating("gemm_", name, tensor);
    TORCH_CHECK_VALUE(tensor.dim() == 2, "torchdion::gemm_: ", name, " must hold 2-D tensors, got shape ",
                      tensor.sizes());
    TORCH_CHECK_VALUE(tensor.sizes() == list[0].sizes() && tensor.strides() == list[0].strides() &&
                          tensor.scalar_type() == list[0].scalar_type(),
                      "torchdion::gemm_: the matrices of ", name, " must be alike in shape, strides and dtype");
    TORCH_CHECK_VALUE(is_strided_for_gemm(tensor), "torchdion::gemm_: the rows or the columns of each matrix of ", name,
                      " must be contiguous, got strides ", tensor.strides());
  }
}

void gemm_meta(at::TensorList C, at::TensorList A, at::TensorList B, double, double, c10::string_view precision) {
  parse_precision("gemm_", precision);
  TORCH_CHECK_VALUE(A.size() == C.size() && B.size() == C.size(),
                    "torchdion::gemm_: the lists must be equally long, got ", C.size(), ", ", A.size(), " and ",
                    B.size());
  check_alike("C", C);
  check_alike("A", A);
  check_alike("B", B);
  if (C.empty()) return;
  TORCH_CHECK_VALUE(A[0].size(0) == C[0].size(0) && B[0].size(1) == C[0].size(1) && A[0].size(1) == B[0].size(0),
                    "torchdion::gemm_: A ", A[0].sizes(), " times B ", B[0].sizes(), " does not fit C ", C[0].sizes());
}

void gemm(at::TensorList C, at::TensorList A, at::TensorList B, double alpha, double beta, c10::string_view precision) {
  gemm_meta(C, A, B, alpha, beta, precision);
  if (C.empty() || C[0].numel() == 0) return;
  const c10::DeviceGuard guard(C[0].device());
  gemm_(Matrices(C), Matrices(A), Matrices(B), alpha, beta, parse_precision("gemm_", precision));
}

}  // namespace

TORCH_LIBRARY(torchdion, m) {
  m.def("column_normalize(Tensor R, Tensor Q) -> Tensor");
  m.def(
      "orthonormalize(Tensor P, str method=\"auto\", float oversample=1.25, int seed=0, int step=0, "
      "float? noise=None, str precision=\"highest\") -> Tensor");
  m.def("cholesky_qr(Tensor P, float? noise=None) -> Tensor");
  m.def("sketch_(Tensor(a!) out, int seed, int step, int row_offset=0, int column_offset=0) -> ()");
  m.def(
      "gemm_(Tensor(a!)[] C, Tensor[] A, Tensor[] B, float alpha=1, float beta=1, "
      "str precision=\"highest\") -> ()");
}

// The same code on every device. Kernels have guards, as the dispatcher has made the operands' device the current one's
// type, not the current one.
void register_kernels(torch::Library& m) {
  m.impl("column_normalize", column_normalize);
  m.impl("orthonormalize", orthonormalize);
  m.impl("cholesky_qr", cholesky_qr);
  m.impl("sketch_", sketch);
  m.impl("gemm_", gemm);
}

TORCH_LIBRARY_IMPL(torchdion, CPU, m) { register_kernels(m); }

TORCH_LIBRARY_IMPL(torchdion, CUDA, m) { register_kernels(m); }  // which a build without CUDA refuses

TORCH_LIBRARY_IMPL(torchdion, Meta, m) {
  m.impl("column_normalize", column_normalize_meta);
  m.impl("orthonormalize", orthonormalize_meta);
  m.impl("cholesky_qr", cholesky_qr_meta);
  m.impl("sketch_", sketch_meta);
  m.impl("gemm_", gemm_meta);
}

}  // namespace torchdion::linalg
