#include "linalg/gemm.h"

#include "linalg/cpu/convert.h"
#include "linalg/cpu/parallel_rows.h"

namespace torchdion::linalg {

namespace {

// Rows converted at a time: enough to feed the GEMM, few enough for the second-level cache.
constexpr int64_t kConvertedRows = 128;

// Floating-point operations worth the start of a thread.
constexpr int64_t kFlopsPerThread = 200'000;

template <class T>
class Product {
 public:
  Product(const Matrices& C, const Matrices& A, const Matrices& B, double alpha, double beta)
      : C(C), A(A), B(B), alpha(static_cast<T>(alpha)), beta(static_cast<T>(beta)) {}

  void rows(int64_t index, int64_t first, int64_t count) const {
    constexpr at::ScalarType dtype = c10::CppTypeToScalarType<T>::value;
    cpu::Scratch<T> a, b, c;
    const cpu::Block<const T> right = cpu::read_rows<T>(B, index, 0, B.rows, b);
    const int64_t step = A.dtype == dtype && C.dtype == dtype ? count : kConvertedRows;
    for (int64_t row = first; row < first + count; row += step) {
      const int64_t piece = std::min(step, first + count - row);
      const cpu::Block<const T> left = cpu::read_rows<T>(A, index, row, piece, a);
      if (C.dtype == dtype) {
        T* target = C.matrix<T>(index) + row * C.row_stride;
        cpu::gemm(cpu::Block<T>{target, C.row_stride, C.col_stride}, left, right, piece, C.cols, A.cols, alpha, beta);
        continue;
      }
      c.resize(piece * C.cols);
      if (beta != 0) cpu::copy_out(c, C, index, row, piece);
      cpu::gemm(cpu::Block<T>{c.data(), C.cols, 1}, left, right, piece, C.cols, A.cols, alpha, beta);
      cpu::write_rows(C, index, row, piece, c);
    }
  }

 private:
  const Matrices &C, &A, &B;
  T alpha, beta;
};

template <class T>
void products(const Matrices& C, const Matrices& A, const Matrices& B, double alpha, double beta) {
  const Product<T> product(C, A, B, alpha, beta);
  const int64_t flops_per_row = std::max<int64_t>(1, 2 * C.cols * A.cols);
  cpu::parallel_rows(C.count(), C.rows, kFlopsPerThread / flops_per_row + 1,
                     [&](int64_t index, int64_t first, int64_t count) { product.rows(index, first, count); });
}

}  // namespace

void gemm_(const Matrices& C, const Matrices& A, const Matrices& B, double alpha, double beta) {
  if (compute_dtype({C.dtype, A.dtype, B.dtype}) == at::kDouble) {
    products<double>(C, A, B, alpha, beta);
  } else {
    products<float>(C, A, B, alpha, beta);
  }
}

}  // namespace torchdion::linalg
