// Cholesky QR on CUDA: products by cuBLAS, and between them the kernels of programs/cholesky.h.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/linalg_vector_norm.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "linalg/cuda/operations.h"
#include "linalg/cuda/programs/cholesky.h"
#include "linalg/cuda/runtime.h"
#include "linalg/cuda/tensors.h"

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

Blocks at_place(const at::Tensor& stack, int64_t row, int64_t col) { return {stack, row, col}; }

Operand operand(const Blocks& blocks) {
  const at::Tensor& stack = blocks.stack;
  const int64_t cols = stack.size(2), offset = blocks.row * cols + blocks.col;
  Operand described;
  described.data = static_cast<char*>(stack.data_ptr()) + offset * static_cast<int64_t>(stack.element_size());
  described.stride = stack.size(1) * cols;
  described.leading = cols;
  described.transposed = blocks.transposed;
  described.storage = storage_of(stack.scalar_type());
  return described;
}

// C ← α A B + β C for m×n blocks; A is m×k.
void multiply_blocks(const Blocks& C, const Blocks& A, const Blocks& B, int64_t m, int64_t n, int64_t k, double alpha,
                     double beta, Arithmetic arithmetic) {
  Product product;
  product.m = n;  // of Cᵀ = Bᵀ Aᵀ, as rows are what is contiguous
  product.n = m;
  product.k = k;
  product.count = C.stack.size(0);
  product.A = operand(B);
  product.B = operand(A);
  product.C = operand(C);
  product.alpha.value = alpha;
  product.beta.value = beta;
  product.arithmetic = arithmetic;
  multiply(product, C.stack.device().index());
}

// Sums of exact products: what is left of rounding is that of FP64 or FP32.
Arithmetic exact(at::ScalarType dtype) { return dtype == at::kDouble ? Arithmetic::fp64 : Arithmetic::fp32; }

// Whether tensor cores would round a factor.
bool is_rounded(at::ScalarType dtype, Precision precision) {
  return dtype == at::kFloat && precision != Precision::highest;
}

int mantissa_bits(Precision precision) {
  return precision == Precision::highest ? 23 : precision == Precision::high ? 10 : 7;
}

// The stack that the matrices of a contiguous tensor are, in `dtype`, without a copy.
at::Tensor stack_of(const Matrices& P) {
  return at::for_blob(P.data.front(), {P.count(), P.rows, P.cols})
      .options(at::TensorOptions(P.dtype).device(P.device))
      .target_device(P.device)  // else CUDA is asked for it
      .make_tensor();
}

// The rows of L⁻¹ diag(noise) for equilibrated Gram matrices A (overwritten), as StoreFactor reads them. pass.noise
// becomes that of orthogonal columns of this length ([count]).
template <class T>
at::Tensor factor_panels(at::Tensor A, const at::Tensor& scale, const at::Tensor& length, CholeskyPass& pass) {
  constexpr int64_t kRows = 2 * kFactoredColumns;
  const int64_t count = A.size(0), r = A.size(1);
  const Arithmetic arithmetic = exact(A.scalar_type());
  const at::Tensor panels = at::empty({count, divide_up(r, kFactoredColumns) * kRows, r}, A.options());
  const at::Tensor inverses = at::empty({count, kRows, kFactoredColumns}, A.options()),
                   inner_products = at::empty({count, kFactoredColumns, kFactoredColumns}, A.options()),
                   rounding = at::empty_like(pass.noise), live = at::empty({count}, A.options().dtype(at::kLong));
  for (int64_t first = 0, row = 0; first < r; first += kFactoredColumns, row += kRows) {
    const int64_t width = std::min<int64_t>(kFactoredColumns, r - first), next = first + width;
    if (first > 0) {
      multiply_blocks(at_place(inner_products, 0, 0), at_place(A, first, 0), at_place(A, first, 0).t(), width, width,
                      first, 1, 0, arithmetic);
    }
    FactorDiagonal<T> program;
    program.A = A.mutable_data_ptr<T>();
    program.inner_products = inner_products.const_data_ptr<T>();
    program.inverses = inverses.mutable_data_ptr<T>();
    program.noise = pass.noise.const_data_ptr<double>();
    program.rounding = rounding.mutable_data_ptr<double>();
    program.scale = scale.const_data_ptr<double>();
    program.length = length.const_data_ptr<double>();
    program.live = live.mutable_data_ptr<int64_t>();
    program.rows = static_cast<float>(pass.rows);
    program.one_over_root_rows = 1 / std::sqrt(program.rows);
    program.without_signal = pass.counts.without_signal;
    program.in_margin = pass.counts.in_margin;
    program.margin = static_cast<T>(pass.given.margin);
    program.r = r;
    program.first = first;
    program.least_pivot = static_cast<T>(least_pivot(A.scalar_type(), pass.rows, r));
    kernels::factor_diagonal(program, count, stream_of(A.device()));
    multiply_blocks(at_place(panels, row, 0), at_place(inverses, 0, 0), at_place(A, first, 0), kRows, r, width, 1, 0,
                    arithmetic);
    if (next == r) break;
    const int64_t clear = row + kFactoredColumns;
    multiply_blocks(at_place(A, next, 0), at_place(panels, clear, next).t(), at_place(panels, clear, 0), r - next, r,
                    width, -1, 1, arithmetic);
  }
  pass.noise = rounding;
  return panels;
}

// The factor in P's dtype F, from Gram matrices of T.
template <class T, class F>
TriangularInverse inverse_of(at::Tensor H, CholeskyPass& pass) {
  const int64_t count = H.size(0), r = H.size(1);
  const at::TensorOptions options = H.options();
  const Stream stream = stream_of(H.device());
  const bool all_begin = !pass.noise.defined();
  if (all_begin) pass.noise = at::empty({count, r}, H.options().dtype(at::kDouble));
  const at::Tensor scale = at::empty_like(pass.noise), length = at::empty({count}, pass.noise.options());
  at::Tensor A = at::empty_like(H);
  Equilibrate<T> equilibrate;
  equilibrate.H = H.const_data_ptr<T>();
  equilibrate.A = A.mutable_data_ptr<T>();
  equilibrate.scale = scale.mutable_data_ptr<double>();
  equilibrate.length = length.mutable_data_ptr<double>();
  equilibrate.noise = pass.noise.mutable_data_ptr<double>();
  equilibrate.all_begin = all_begin;
  equilibrate.r = r;
  equilibrate.own = pass.given.own;
  equilibrate.mean = pass.given.mean;
  equilibrate.momentum = pass.given.momentum;
  equilibrate.most_steps = pass.given.most_steps;
  equilibrate.steps = pass.given.steps;
  equilibrate.steps_before = pass.given.steps_before;
  equilibrate.largest = pass.dtype == at::kDouble ? std::numeric_limits<double>::infinity() : kLargestInFP32;
  kernels::equilibrate(equilibrate, count, stream);
  H.reset();  // what is not needed any more is not held: of small r these matrices are most of a step's memory
  const at::Tensor panels = factor_panels<T>(std::move(A), scale, length, pass);
  TriangularInverse factor;
  factor.inverse = at::empty({count, r, r}, options.dtype(pass.dtype));
  StoreFactor<T, F> store{panels.const_data_ptr<T>(),
                          scale.const_data_ptr<double>(),
                          factor.inverse.mutable_data_ptr<F>(),
                          nullptr,
                          is_rounded(pass.dtype, pass.precision),
                          r};
  // In two parts a rounded factor is good to 21 bits. A Gram matrix in FP32 is that of columns that are orthonormal but
  // for rounding: their factor is so near to the identity that one part does.
  if (store.rounds && std::is_same_v<T, double>) {
    factor.rest = at::empty_like(factor.inverse);
    store.rest = factor.rest.mutable_data_ptr<F>();
  }
  kernels::store_factor(store, count, stream);
  return factor;
}

// [count, 1, 1]: powers of two that make the numbers of each matrix some that FP32 holds.
at::Tensor within_fp32(const at::Tensor& matrices) {
  const at::Tensor largest = at::linalg_vector_norm(matrices, std::numeric_limits<double>::infinity(), {1, 2}, true);
  return largest.reciprocal_().mul_(kLargestInFP32).clamp_max_(1).log2_().floor_().exp2_();
}

}  // namespace

void Operations::round_operand_(const at::Tensor& P, Precision precision) {
  if (P.scalar_type() != at::kFloat || precision == Precision::highest) return;
  const OperandRows entries{P.mutable_data_ptr<float>(), 1, P.numel(), P.numel()};
  kernels::round_operand(entries, nullptr, mantissa_bits(precision), stream_of(P.device()));
}

at::Tensor Operations::gram(const Matrices& P, Precision precision, bool is_nearly_orthonormal) {
  const int64_t count = P.count(), m = P.rows, r = P.cols;
  // An orthonormal P but for rounding needs no more than FP32, which FP32 sums of exact products give.
  const bool in_double = P.dtype == at::kDouble || !is_nearly_orthonormal || precision == Precision::highest;
  const at::TensorOptions options = at::TensorOptions(in_double ? at::kDouble : at::kFloat).device(P.device);
  const at::Tensor H = at::empty({count, r, r}, options);
  if (P.numel() == 0) return H.zero_();  // this rank has no rows, or no matrix of the batch
  const at::Tensor own = stack_of(P);
  const bool copies = in_double && P.dtype == at::kFloat;
  const int64_t piece = copies ? std::clamp<int64_t>(kCopiedEntries / (count * r), 1, m) : m;
  const at::Tensor copy = copies ? at::empty({count, piece, r}, options) : at::Tensor();
  for (int64_t first = 0; first < m; first += piece) {
    const int64_t rows = std::min(piece, m - first);
    if (P.dtype == at::kFloat) {
      float* begin = P.matrix<float>(0) + first * r;
      const OperandRows entries =
          rows == m ? OperandRows{begin, 1, P.numel(), P.numel()} : OperandRows{begin, count, rows * r, m * r};
      kernels::round_operand(entries, copies ? copy.mutable_data_ptr<double>() : nullptr, mantissa_bits(precision),
                             stream_of(P.device));
    }
    const Blocks operands = copies
                                ? at_place(copy.view({-1}).narrow(0, 0, count * rows * r).view({count, rows, r}), 0, 0)
                                : at_place(own, first, 0);
    multiply_blocks(at_place(H, 0, 0), operands.t(), operands, r, r, rows, 1, first == 0 ? 0 : 1,
                    in_double ? Arithmetic::fp64 : Arithmetic::tf32);
  }
  return H;
}

TriangularInverse Operations::cholesky_inverse(at::Tensor gram, CholeskyPass& pass) {
  if (gram.scalar_type() == at::kFloat) return inverse_of<float, float>(std::move(gram), pass);
  if (pass.dtype == at::kFloat) return inverse_of<double, float>(std::move(gram), pass);
  return inverse_of<double, double>(std::move(gram), pass);
}

void Operations::multiply_triangular_(const Matrices& out, const Matrices& P, const TriangularInverse& factor,
                                      Precision precision) {
  const at::Tensor target = stack_of(out), source = stack_of(P);
  const Arithmetic arithmetic = is_rounded(P.dtype, precision) ? Arithmetic::tf32 : exact(P.dtype);
  multiply_blocks(at_place(target, 0, 0), at_place(source, 0, 0), at_place(factor.inverse, 0, 0), P.rows, P.cols,
                  P.cols, 1, 0, arithmetic);
  if (factor.rest.defined()) {
    multiply_blocks(at_place(target, 0, 0), at_place(source, 0, 0), at_place(factor.rest, 0, 0), P.rows, P.cols, P.cols,
                    1, 1, arithmetic);
  }
}

// By Cholesky QR of the sketch itself: where LAPACK's QR would run on one matrix after the other. The first factor
// makes the sketch orthonormal but for rounding, which the second one takes away.
TriangularInverse Operations::sketch_qr_inverse(const at::Tensor& SP, Noise noise, at::ScalarType dtype,
                                                Precision precision, int64_t* in_margin) {
  const int64_t count = SP.size(0), k = SP.size(1), r = SP.size(2);
  CholeskyPass pass{.rows = k, .dtype = at::kDouble, .given = noise, .counts = {nullptr, in_margin}};
  at::Tensor H = gram(Matrices(SP), Precision::highest, false);
  const TriangularInverse first = cholesky_inverse(std::move(H), pass);
  const at::Tensor turned = at::empty_like(SP);
  multiply_triangular_(Matrices(turned), Matrices(SP), first, Precision::highest);
  H = gram(Matrices(turned), Precision::highest, false);
  const TriangularInverse second = cholesky_inverse(std::move(H), pass);
  const at::Tensor both = at::empty({count, r, r}, SP.options());
  multiply_blocks(at_place(both, 0, 0), at_place(first.inverse, 0, 0), at_place(second.inverse, 0, 0), r, r, r, 1, 0,
                  Arithmetic::fp64);
  if (dtype == at::kFloat) both.mul_(within_fp32(both));
  TriangularInverse factor{{}, both.to(dtype, /*non_blocking=*/false, /*copy=*/true)};
  if (is_rounded(dtype, precision)) {
    round_operand_(factor.inverse, Precision::high);
    factor.rest = both.sub_(factor.inverse).to(dtype);
    round_operand_(factor.rest, Precision::high);
  }
  return factor;
}

}  // namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE
