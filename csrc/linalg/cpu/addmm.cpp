#include "linalg/gemm.h"

#include <ATen/Parallel.h>

#include "linalg/cpu/bfloat16_products.h"
#include "linalg/cpu/blas.h"
#include "linalg/cpu/convert.h"
#include "linalg/cpu/operations.h"

namespace torchdion::linalg::cpu {

namespace {

// Rows of a symmetric product that are computed in one piece, each piece with the columns up to its diagonal block:
// narrow ones waste less above the diagonal.
constexpr int64_t kSymmetricRows = 96;

bool are_the_same(const Matrices& A, const Matrices& B) {
  return A.data == B.data && A.dtype == B.dtype && A.row_stride == B.row_stride && A.col_stride == B.col_stride;
}

template <class T>
Block<T> block_of(const Matrices& A, int64_t index) {
  return {A.matrix<T>(index), A.row_stride, A.col_stride};
}

// What stands left of the diagonal in some rows of C, to above it: in tiles whose rows and columns stay in the cache.
template <class T>
void mirror(const Block<T>& C, int64_t first, int64_t rows) {
  constexpr int64_t kTile = 32;
  for (int64_t tile = 0; tile < first + rows; tile += kTile) {
    for (int64_t i = std::max(first, tile); i < first + rows; ++i) {
      const int64_t end = std::min(tile + kTile, i);
      for (int64_t j = tile; j < end; ++j) *C.at(j, i).data = *C.at(i, j).data;
    }
  }
}

// C ← α A B + β D for symmetric ones, all stored as T. Each piece of rows on one thread, so that the bits of the
// product are those of any number of threads.
template <class T>
void multiply_symmetric(const Matrices& C, const Matrices& D, const Matrices& A, const Matrices& B, double alpha,
                        double beta) {
  const int64_t n = C.rows, pieces = (n + kSymmetricRows - 1) / kSymmetricRows;
  const bool copies = beta != 0 && !are_the_same(C, D);
  at::parallel_for(0, C.count() * pieces, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t index = i / pieces, next = i % pieces;
      // the longest piece after the shortest, so that threads have equal shares of them
      const int64_t piece = next % 2 == 0 ? next / 2 : pieces - 1 - next / 2;
      const int64_t first = piece * kSymmetricRows, rows = std::min(kSymmetricRows, n - first), cols = first + rows;
      const Block<T> c = block_of<T>(C, index), d = block_of<T>(D, index);
      for (int64_t row = first; copies && row < first + rows; ++row) {
        for (int64_t col = 0; col < cols; ++col) *c.at(row, col).data = *d.at(row, col).data;
      }
      cpu::gemm(c.at(first, 0), block_of<const T>(A, index).at(first, 0), block_of<const T>(B, index), rows, cols,
                A.cols, static_cast<T>(alpha), static_cast<T>(beta));
    }
  });
  at::parallel_for(0, C.count() * pieces, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = i % pieces * kSymmetricRows;
      mirror(block_of<T>(C, i / pieces), first, std::min(kSymmetricRows, n - first));
    }
  });
}

// As the processor would do it with BF16 operands, at the rate of FP32.
void multiply_rounded(const Matrices& C, const Matrices& D, const Matrices& A, const Matrices& B, double alpha,
                      double beta, bool symmetric) {
  for (int64_t i = 0; i < C.count(); ++i) {
    at::Tensor a_memory, b_memory;
    const Matrices a = rounded_to_bfloat16(A.slice(i, i + 1), a_memory),
                   b = rounded_to_bfloat16(B.slice(i, i + 1), b_memory);
    Operations::addmm_(C.slice(i, i + 1), D.slice(i, i + 1), a, b, alpha, beta, Precision::highest, symmetric);
  }
}

bool is_single(at::ScalarType dtype) { return dtype == at::kFloat || dtype == at::kBFloat16; }

}  // namespace

bool multiplies_bfloat16(const Matrices& C, const Matrices& A, const Matrices& B, Precision precision) {
  if (C.dtype == at::kDouble || !is_single(A.dtype) || !is_single(B.dtype)) return false;
  if (A.dtype == at::kBFloat16 && B.dtype == at::kBFloat16) return has_bfloat16_products();
  return precision == Precision::medium;
}

void Operations::addmm_(const Matrices& C, const Matrices& D, const Matrices& A, const Matrices& B, double alpha,
                        double beta, Precision precision, bool symmetric) {
  if (multiplies_bfloat16(C, A, B, precision)) {
    if (has_bfloat16_products()) return multiply_bfloat16(C, D, A, B, alpha, beta, symmetric);
    return multiply_rounded(C, D, A, B, alpha, beta, symmetric);
  }
  const at::ScalarType computing = compute_dtype({C.dtype, A.dtype, B.dtype});
  const bool as_stored = C.dtype == computing && D.dtype == computing && A.dtype == computing && B.dtype == computing;
  if (symmetric && as_stored && C.rows > kSymmetricRows) {
    if (computing == at::kDouble) return multiply_symmetric<double>(C, D, A, B, alpha, beta);
    return multiply_symmetric<float>(C, D, A, B, alpha, beta);
  }
  if (beta != 0 && !are_the_same(C, D)) copy_(C, D, 1, {});
  gemm_(C, A, B, alpha, beta, precision);
}

}  // namespace torchdion::linalg::cpu
