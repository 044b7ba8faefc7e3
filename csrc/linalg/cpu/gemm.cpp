#include "linalg/cpu/bfloat16_products.h"
#include "linalg/cpu/blas.h"
#include "linalg/cpu/convert.h"
#include "linalg/cpu/operations.h"
#include "linalg/cpu/parallel_rows.h"

namespace torchdion::linalg::cpu {

namespace {

// Rows converted at a time: enough to feed the GEMM, few enough for the second-level cache.
constexpr int64_t kConvertedRows = 128;

// Rows scaled by β at a time, so that the product finds them in the cache; enough of them to be worth packing B again.
constexpr int64_t kScaledBytes = 1 << 18, kLeastScaledRows = 128;

// Floating-point operations worth the start of a thread.
constexpr int64_t kFlopsPerThread = 200'000;

// C ← α A B + β C, for C in row-major order.
template <class T>
class Product {
 public:
  Product(const Matrices& C, const Matrices& A, const Matrices& B, double alpha, double beta)
      : C(C),
        A(A),
        B(B),
        alpha(static_cast<T>(alpha)),
        beta(static_cast<T>(beta)),
        is_narrow(std::is_same_v<T, float> && cpu::is_narrow(C.cols, A.cols)) {}

  // Rows `first` to `first + count` of C in matrix `index`.
  void rows(int64_t index, int64_t first, int64_t count) const {
    std::vector<T> a, b, c;
    const cpu::Block<const T> right = cpu::read_rows<T>(B, index, 0, B.rows, b);
    const int64_t step = rows_at_a_time(count);
    for (int64_t row = first; row < first + count; row += step) {
      const int64_t piece = std::min(step, first + count - row);
      const cpu::Block<const T> left = cpu::read_rows<T>(A, index, row, piece, a);
      if (C.dtype == dtype) {
        T* target = C.matrix<T>(index) + row * C.row_stride;
        if (scales()) scale(target, piece);
        multiply({target, C.row_stride, 1}, left, right, piece, scales() ? 1 : beta);
      } else {
        c.resize(piece * C.cols);
        if (beta != 0) cpu::copy_out(c, C, index, row, piece);
        multiply({c.data(), C.cols, 1}, left, right, piece, beta);
        cpu::write_rows(C, index, row, piece, c);
      }
    }
  }

 private:
  static constexpr at::ScalarType dtype = c10::CppTypeToScalarType<T>::value;

  // BLAS would scale all of C in a pass of its own before it multiplies.
  bool scales() const { return !is_narrow && beta != 0 && beta != 1; }

  int64_t rows_at_a_time(int64_t count) const {
    if (A.dtype != dtype || C.dtype != dtype) return kConvertedRows;
    const int64_t row_bytes = C.cols * static_cast<int64_t>(sizeof(T));
    return scales() ? std::max(kLeastScaledRows, kScaledBytes / row_bytes) : count;
  }

  void scale(T* target, int64_t rows) const {
    for (int64_t i = 0; i < rows; ++i) {
      T* row = target + i * C.row_stride;
      for (int64_t j = 0; j < C.cols; ++j) row[j] *= beta;
    }
  }

  void multiply(cpu::Block<T> target, cpu::Block<const T> left, cpu::Block<const T> right, int64_t rows,
                T factor) const {
    if constexpr (std::is_same_v<T, float>) {
      if (is_narrow) return narrow_gemm(target, left, right, rows, C.cols, A.cols, alpha, factor);
    }
    cpu::gemm(target, left, right, rows, C.cols, A.cols, alpha, factor);
  }

  const Matrices &C, &A, &B;
  T alpha, beta;
  bool is_narrow;
};

template <class T>
void products(const Matrices& C, const Matrices& A, const Matrices& B, double alpha, double beta) {
  const Product<T> product(C, A, B, alpha, beta);
  const int64_t flops_per_row = std::max<int64_t>(1, 2 * C.cols * A.cols);
  cpu::parallel_rows(C.count(), C.rows, kFlopsPerThread / flops_per_row + 1,
                     [&](int64_t index, int64_t first, int64_t count) { product.rows(index, first, count); });
}

double number(const Factor& factor) { return factor.device.defined() ? factor.device.item<double>() : factor.value; }

}  // namespace

void Operations::gemm_(const Matrices& C, const Matrices& A, const Matrices& B, const Factor& alpha, const Factor& beta,
                       Precision precision) {
  if (multiplies_bfloat16(C, A, B, precision)) {
    return addmm_(C, C, A, B, number(alpha), number(beta), precision, /*symmetric=*/false);
  }
  // Threads and caches want the rows of C contiguous: Cᵀ = Bᵀ Aᵀ.
  if (!C.row_major()) return gemm_(C.t(), B.t(), A.t(), alpha, beta, precision);
  if (compute_dtype({C.dtype, A.dtype, B.dtype}) == at::kDouble) {
    products<double>(C, A, B, number(alpha), number(beta));
  } else {
    products<float>(C, A, B, number(alpha), number(beta));
  }
}

}  // namespace torchdion::linalg::cpu
