#include <algorithm>
#include <type_traits>

#include "linalg/cpu/convert.h"
#include "linalg/cpu/operations.h"
#include "linalg/cpu/parallel_rows.h"
#include "linalg/cpu/turned_block.h"

namespace torchdion::linalg::cpu {

namespace {

// The same bits, of some rows of one matrix.
template <class T>
void copy_rows(const Matrices& A, const Matrices& B, int64_t index, int64_t first, int64_t rows) {
  for_each_run_of_rows<T, T>(B, index, first, rows, [&](int64_t row, int64_t col, int64_t many, const T* b) {
    std::copy_n(b, many, A.matrix<T>(index) + row * A.row_stride + col);
  });
}

}  // namespace

void Operations::copy_(const Matrices& A, const Matrices& B, double alpha, const Frozen& frozen) {
  if (!A.row_major()) return copy_(A.t(), B.t(), alpha, frozen);
  TORCHDION_DISPATCH_FLOATING(A.dtype, "torchdion::copy_", [&] {
    using target_t = scalar_t;
    TORCHDION_DISPATCH_FLOATING(B.dtype, "torchdion::copy_", [&] {
      using T = Wider<target_t, scalar_t>;
      parallel_rows(A, [&](int64_t index, int64_t first, int64_t count) {
        if (frozen.has(index)) return;
        if constexpr (std::is_same_v<target_t, scalar_t>) {
          if (alpha == 1) return copy_rows<scalar_t>(A, B, index, first, count);
        }
        for_each_run_of_rows<T, scalar_t>(B, index, first, count, [&](int64_t row, int64_t col, int64_t many, auto* b) {
          target_t* a = A.matrix<target_t>(index) + row * A.row_stride + col;
          for (int64_t j = 0; j < many; ++j) a[j] = rounded<target_t>(static_cast<T>(alpha) * static_cast<T>(b[j]));
        });
      });
    });
  });
}

void Operations::clear_(const Matrices& A, const Frozen& frozen) {
  if (!A.row_major()) return clear_(A.t(), frozen);
  TORCHDION_DISPATCH_FLOATING(A.dtype, "torchdion::clear_", [&] {
    for (int64_t index = 0; index < A.count(); ++index) {
      if (!frozen.has(index)) continue;
      for (int64_t i = 0; i < A.rows; ++i) {
        std::fill_n(A.matrix<scalar_t>(index) + i * A.row_stride, A.cols, scalar_t());
      }
    }
  });
}

}  // namespace torchdion::linalg::cpu
