#include "linalg/cpu/blas.h"

#include <algorithm>

// Fortran BLAS as torch declares it: 32-bit integers, column-major.
extern "C" {
void sgemm_(const char* transa, const char* transb, const int* m, const int* n, const int* k, const float* alpha,
            const float* a, const int* lda, const float* b, const int* ldb, const float* beta, float* c,
            const int* ldc);
void dgemm_(const char* transa, const char* transb, const int* m, const int* n, const int* k, const double* alpha,
            const double* a, const int* lda, const double* b, const int* ldb, const double* beta, double* c,
            const int* ldc);
}

namespace torchdion::linalg::cpu {

namespace {

auto blas_gemm(float) { return sgemm_; }
auto blas_gemm(double) { return dgemm_; }

// Seen column by column, a row-major block is its own transpose, which is what BLAS calls "not transposed" once the
// whole product is transposed: Cᵀ = Bᵀ Aᵀ.
template <class T>
struct ColumnMajor {
  char trans;
  int leading;
  ColumnMajor(Block<const T> block, int64_t rows, int64_t cols) {
    const bool row_major = block.col_stride == 1;
    trans = row_major ? 'N' : 'T';
    const int64_t least = std::max<int64_t>(1, row_major ? cols : rows);
    leading = static_cast<int>(std::max(row_major ? block.row_stride : block.col_stride, least));
  }
};

}  // namespace

template <class T>
void gemm(Block<T> C, std::type_identity_t<Block<const T>> A, std::type_identity_t<Block<const T>> B, int64_t rows,
          int64_t cols, int64_t inner, std::type_identity_t<T> alpha, std::type_identity_t<T> beta) {
  if (rows == 0 || cols == 0) return;
  if (C.col_stride != 1) return gemm(C.t(), B.t(), A.t(), cols, rows, inner, alpha, beta);
  const ColumnMajor<T> a(A, rows, inner), b(B, inner, cols), c(C, rows, cols);
  const int m = static_cast<int>(cols), n = static_cast<int>(rows), k = static_cast<int>(inner);
  blas_gemm(T{})(&b.trans, &a.trans, &m, &n, &k, &alpha, B.data, &b.leading, A.data, &a.leading, &beta, C.data,
                 &c.leading);
}

template void gemm(Block<float>, Block<const float>, Block<const float>, int64_t, int64_t, int64_t, float, float);
template void gemm(Block<double>, Block<const double>, Block<const double>, int64_t, int64_t, int64_t, double, double);

}  // namespace torchdion::linalg::cpu
