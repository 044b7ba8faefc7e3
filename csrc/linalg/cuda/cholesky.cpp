// Cholesky QR on CUDA: products by cuBLAS, and between them the kernel of programs/factor_gram.h.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/linalg_vector_norm.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "linalg/cuda/operations.h"
#include "linalg/cuda/programs/factor_gram.h"
#include "linalg/cuda/runtime.h"
#include "linalg/cuda/tensors.h"
#include "linalg/factor_dtypes.h"

namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE {

namespace {

// What is left to 2^128 is for the growth of a factor.
constexpr double kLargestInFP32 = 0x1p100;

// Of P's that are copied to FP64 at a time: 64 MiB.
constexpr int64_t kCopiedEntries = int64_t{8} << 20;

// A block of each matrix of a contiguous stack.
struct Blocks {
  at::Tensor stack;  // [count, rows, cols]
  int64_t row = 0, col = 0;
  bool transposed = false;

  Blocks t() const { return {stack, row, col, !transposed}; }
};

Operand operand(const Blocks& blocks) {
  const at::Tensor& stack = blocks.stack;
  const int64_t cols = stack.size(2), offset = blocks.row * cols + blocks.col;
  char* data = static_cast<char*>(stack.data_ptr()) + offset * static_cast<int64_t>(stack.element_size());
  return {data, stack.size(1) * cols, nullptr, cols, blocks.transposed, storage_of(stack.scalar_type())};
}

// C ← α A B + β C for m×n blocks; A is m×k.
void multiply_blocks(const Blocks& C, const Blocks& A, const Blocks& B, int64_t m, int64_t n, int64_t k, double alpha,
                     double beta, Arithmetic arithmetic) {
  // Cᵀ = Bᵀ Aᵀ, as rows are what is contiguous.
  const Product product{n, m, k, C.stack.size(0), operand(B), operand(A), operand(C), {alpha}, {beta}, arithmetic};
  multiply(product, C.stack.device().index());
}

// Sums of exact products: what is left of rounding is that of FP64 or FP32.
Arithmetic exact(at::ScalarType dtype) { return dtype == at::kDouble ? Arithmetic::fp64 : Arithmetic::fp32; }

// The stack that the matrices of a contiguous tensor are, in `dtype`, without a copy.
at::Tensor stack_of(const Matrices& P) {
  return at::for_blob(P.data.front(), {P.count(), P.rows, P.cols})
      .options(at::TensorOptions(P.dtype).device(P.device))
      .target_device(P.device)  // else CUDA is asked for it
      .make_tensor();
}

// [count, 1, 1]: powers of two that make the numbers of each matrix some that FP32 holds.
at::Tensor within_fp32(const at::Tensor& matrices) {
  const at::Tensor largest = at::linalg_vector_norm(matrices, std::numeric_limits<double>::infinity(), {1, 2}, true);
  return largest.reciprocal_().mul_(kLargestInFP32).clamp_max_(1).log2_().floor_().exp2_();
}

// How far a matrix that has been through a pass may be from the identity for its factor to be found without an
// elimination: an error of 2 η² (EquilibrateGram::settled) is then what storing P rounds.
double first_order_distance(at::ScalarType dtype, Precision precision) {
  if (!is_rounded_on_gpu(dtype, precision)) return 0;
  return std::sqrt((precision == Precision::high ? 0x1p-12 : 0x1p-9) / 2);
}

// C ← C − Aᵀ B of blocks of one stack: what is left of rows after an elimination.
void eliminate_below(const at::Tensor& A, int64_t first, int64_t end) {
  const int64_t r = A.size(1);
  multiply_blocks({A, end, 0}, Blocks{A, first, end}.t(), {A, first, 0}, r - end, r, end - first, -1, 1,
                  exact(A.scalar_type()));
}

// The inverse of the factor, as F, from Gram matrices of T, which are overwritten. Rounded, it is in two parts, good to
// 16 bits in BF16 and to 21 in TF32. The elimination needs it in any case, to know the noise of columns. To free P's
// blocks of those before them instead would use what storing has rounded of these, of which a short column is the
// difference.
template <class T, class F>
TriangularInverse inverse_of(const at::Tensor& A, CholeskyPass& pass) {
  using Program = FactorGram<T, F>;
  const int64_t count = A.size(0), r = A.size(1);
  const bool all_begin = !pass.noise.defined();
  const at::TensorOptions numbers = A.options().dtype(at::kDouble);
  if (all_begin) pass.noise = at::empty({count, r}, numbers);
  const at::Tensor scale = at::empty({count, r}, numbers), unit = at::empty_like(scale),
                   rounding = at::empty_like(scale), length = at::empty({count}, numbers),
                   live = at::empty({count}, numbers.dtype(at::kLong)),
                   scratch = at::empty({count, Program::kScratch}, A.options());
  TriangularInverse factor;
  factor.inverse = at::empty({count, r, r}, A.options().dtype(pass.dtype));
  if (is_rounded_on_gpu(pass.dtype, pass.precision)) factor.rest = at::empty_like(factor.inverse);
  Program program{};
  program.A = A.mutable_data_ptr<T>();
  program.scratch = scratch.mutable_data_ptr<T>();
  program.rounding = rounding.mutable_data_ptr<double>();
  program.live = live.mutable_data_ptr<int64_t>();
  program.without_signal = pass.counts.without_signal;
  program.in_margin = pass.counts.in_margin;
  program.factor = static_cast<F*>(factor.inverse.mutable_data_ptr());
  program.rest = factor.rest.defined() ? static_cast<F*>(factor.rest.mutable_data_ptr()) : nullptr;
  program.r = r;
  program.least_pivot = static_cast<T>(least_pivot(A.scalar_type(), pass.rows, r));
  EquilibrateGram<T>& columns = program.columns;
  columns.r = r;
  columns.scale = scale.mutable_data_ptr<double>();
  columns.unit = unit.mutable_data_ptr<double>();
  columns.noise = pass.noise.mutable_data_ptr<double>();
  columns.exponents = pass.exponents.defined() ? pass.exponents.const_data_ptr<int>() : nullptr;
  columns.shift = pass.shift.defined() ? pass.shift.const_data_ptr<int>() : nullptr;
  columns.length = length.mutable_data_ptr<double>();
  columns.all_begin = all_begin;
  columns.given = pass.given;
  columns.largest = pass.dtype == at::kDouble ? std::numeric_limits<double>::infinity() : kLargestInFP32;
  columns.settled = first_order_distance(pass.dtype, pass.precision);
  columns.rows = static_cast<float>(pass.rows);
  columns.one_over_root_rows = 1 / std::sqrt(columns.rows);
  columns.margin = static_cast<T>(pass.given.margin);
  for (; program.first < r; program.first += kFactoredColumns) {
    kernels::factor_gram(program, count, stream_of(A.device()));
    if (!program.is_last()) eliminate_below(A, program.first, program.end());
  }
  pass.noise = rounding;
  return factor;
}

// Two parts that tensor cores read without rounding, of a factor in FP32.
TriangularInverse in_two_parts(const at::Tensor& whole, at::ScalarType dtype, Precision precision) {
  const auto part = [&](const at::Tensor& entries) {
    const at::Tensor stored = entries.to(dtype, /*non_blocking=*/false, /*copy=*/true);
    Operations::round_operand_(stored, precision);
    return stored;
  };
  const at::Tensor leading = part(whole);
  return {{}, leading, part(whole.sub(leading))};
}

}  // namespace

void Operations::round_operand_(const at::Tensor& P, Precision precision) {
  if (!is_rounded_on_gpu(P.scalar_type(), precision) || P.scalar_type() == at::kBFloat16) return;
  kernels::round_operand(P.mutable_data_ptr<float>(), P.numel(), precision == Precision::high ? 10 : 7,
                         stream_of(P.device()));
}

at::Tensor Operations::gram(const Matrices& P, Precision precision, at::Tensor* exponents) {
  const int64_t count = P.count(), m = P.rows, r = P.cols;
  const bool rounds = is_rounded_on_gpu(P.dtype, precision);
  const at::TensorOptions options = at::TensorOptions(sum_dtype(P.dtype, precision)).device(P.device);
  const at::Tensor H = at::empty({count, r, r}, options);
  if (P.numel() == 0) return H.zero_();  // this rank has no rows, or no matrix of the batch
  const at::Tensor own = stack_of(P);
  if (rounds) {
    if (exponents) {
      *exponents = at::empty({count, r}, options.dtype(at::kInt));
      kernels::scale_columns(entries(own), count, m, r, exponents->mutable_data_ptr<int>(), /*rounds=*/true,
                             stream_of(P.device));
    } else {
      round_operand_(own, precision);
    }
    multiply_blocks({H}, Blocks{own}.t(), {own}, r, r, m, 1, 0, Arithmetic::tf32);
    return H;
  }
  const bool copies = P.dtype == at::kFloat;
  const int64_t piece = copies ? std::clamp<int64_t>(kCopiedEntries / (count * r), 1, m) : m;
  const at::Tensor copy = copies ? at::empty({count, piece, r}, options) : at::Tensor();
  for (int64_t first = 0; first < m; first += piece) {
    const int64_t rows = std::min(piece, m - first);
    at::Tensor operand = own;
    if (copies) {
      operand = copy.view({-1}).narrow(0, 0, count * rows * r).view({count, rows, r});
      copy_(Matrices(operand), Matrices(own.narrow(1, first, rows)), 1, {});
    }
    const Blocks entries{operand, copies ? 0 : first, 0};
    multiply_blocks({H}, entries.t(), entries, r, r, rows, 1, first == 0 ? 0 : 1, Arithmetic::fp64);
  }
  return H;
}

TriangularInverse Operations::cholesky_inverse(at::Tensor gram, CholeskyPass& pass) {
  if (pass.dtype == at::kDouble) return inverse_of<double, double>(gram, pass);
  if (gram.scalar_type() == at::kDouble) return inverse_of<double, float>(gram, pass);
  if (pass.dtype == at::kFloat) return inverse_of<float, float>(gram, pass);
  return inverse_of<float, BFloat16>(gram, pass);
}

// The smaller part first, whose product is rounded to what `out` holds.
void Operations::multiply_triangular_(const Matrices& out, const Matrices& P, const TriangularInverse& factor,
                                      Precision precision) {
  const at::Tensor target = stack_of(out), source = stack_of(P);
  const Arithmetic arithmetic = is_rounded_on_gpu(P.dtype, precision) ? Arithmetic::tf32 : exact(P.dtype);
  const auto multiply_by = [&](const at::Tensor& part, double beta) {
    multiply_blocks({target}, {source}, {part}, P.rows, P.cols, P.cols, 1, beta, arithmetic);
  };
  if (factor.rest.defined()) multiply_by(factor.rest, 0);
  multiply_by(factor.inverse, factor.rest.defined() ? 1 : 0);
}

// By Cholesky QR of the sketch itself: where LAPACK's QR would run on one matrix after the other. The first factor
// makes the sketch orthonormal but for rounding, which the second one takes away.
TriangularInverse Operations::sketch_qr_inverse(const at::Tensor& SP, Noise noise, at::ScalarType dtype,
                                                Precision precision, int64_t* in_margin) {
  const int64_t count = SP.size(0), k = SP.size(1), r = SP.size(2);
  const Arithmetic arithmetic = exact(SP.scalar_type());
  CholeskyPass pass{.rows = k, .dtype = SP.scalar_type(), .given = noise, .counts = {nullptr, in_margin}};
  const auto factor_of = [&](const at::Tensor& sketch) {
    const at::Tensor H = at::empty({count, r, r}, SP.options());
    multiply_blocks({H}, Blocks{sketch}.t(), {sketch}, r, r, k, 1, 0, arithmetic);
    return SP.scalar_type() == at::kDouble ? inverse_of<double, double>(H, pass) : inverse_of<float, float>(H, pass);
  };
  if (SP.scalar_type() == at::kFloat) {
    pass.exponents = at::empty({count, r}, SP.options().dtype(at::kInt));
    kernels::scale_columns(entries(SP), count, k, r, pass.exponents.mutable_data_ptr<int>(),
                           /*rounds=*/false, stream_of(SP.device()));
  }
  const at::Tensor exponents = pass.exponents;
  const TriangularInverse first = factor_of(SP);
  pass.exponents = at::Tensor();
  const at::Tensor turned = at::empty_like(SP), both = at::empty({count, r, r}, SP.options());
  multiply_triangular_(Matrices(turned), Matrices(SP), first, Precision::highest);
  const TriangularInverse second = factor_of(turned);
  multiply_blocks({both}, {first.inverse}, {second.inverse}, r, r, r, 1, 0, arithmetic);
  at::Tensor whole = both.to(at::kDouble);
  if (exponents.defined()) whole.mul_(exponents.to(at::kDouble).neg_().exp2_().unsqueeze(2));
  if (dtype != at::kDouble) whole.mul_(within_fp32(whole));
  if (is_rounded_on_gpu(dtype, precision)) return in_two_parts(whole.to(at::kFloat), dtype, precision);
  return {{}, whole.to(dtype)};
}

}  // namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE
