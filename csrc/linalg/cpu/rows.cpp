#include "linalg/rows.h"

#include <ATen/ops/zeros.h>

#include <algorithm>

#include "linalg/cpu/convert.h"
#include "linalg/cpu/operations.h"
#include "linalg/cpu/parallel_rows.h"
#include "linalg/cpu/turned_block.h"

namespace torchdion::linalg::cpu {

namespace {

int64_t grain_of(const Matrices& A) { return kElementsPerThread / std::max<int64_t>(1, A.cols) + 1; }

// Of contiguous entries: sums of every 16th entry, which a processor adds side by side.
template <RowSum kind, class S>
double sum_of(const S* entries, int64_t count) {
  constexpr int kLanes = 16;
  double lanes[kLanes] = {};
  int64_t j = 0;
  for (; j + kLanes <= count; j += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += term_of<kind>(static_cast<double>(entries[j + lane]));
  }
  for (int lane = 0; j < count; ++j, ++lane) lanes[lane] += term_of<kind>(static_cast<double>(entries[j]));
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  return lanes[0];
}

// Of rows whose entries lie apart: column after column, with the rows side by side.
template <RowSum kind, class S>
void add_columns(double* sums, const S* first, int64_t rows, const Matrices& A) {
  for (int64_t j = 0; j < A.cols; ++j) {
    const S* column = first + j * A.col_stride;
    for (int64_t i = 0; i < rows; ++i) sums[i] += term_of<kind>(static_cast<double>(column[i * A.row_stride]));
  }
}

template <RowSum kind>
at::Tensor sums_of_rows(const Matrices& A) {
  const at::Tensor sums = at::zeros({A.count(), A.rows}, at::kDouble);
  double* out = sums.mutable_data_ptr<double>();
  TORCHDION_DISPATCH_FLOATING(A.dtype, "torchdion::row_sums", [&] {
    parallel_rows(A.count(), A.rows, grain_of(A), [&](int64_t index, int64_t first, int64_t rows) {
      const scalar_t* entries = A.matrix<const scalar_t>(index) + first * A.row_stride;
      double* of_rows = out + index * A.rows + first;
      if (!A.row_major()) return add_columns<kind>(of_rows, entries, rows, A);
      for (int64_t i = 0; i < rows; ++i) of_rows[i] = sum_of<kind>(entries + i * A.row_stride, A.cols);
    });
  });
  return sums;
}

// Row i of A ← row source[i] of B, of one matrix and some rows.
template <class TA, class TB>
void take(const Matrices& A, const Matrices& B, int64_t index, const int32_t* source, int64_t first, int64_t rows) {
  for (int64_t i = first; i < first + rows; ++i) {
    TA* a = A.matrix<TA>(index) + i * A.row_stride;
    if (source[i] < 0) {
      std::fill_n(a, A.cols, TA());
      continue;
    }
    const TB* b = B.matrix<const TB>(index) + source[i] * B.row_stride;
    for (int64_t j = 0; j < A.cols; ++j) a[j] = rounded<TA>(static_cast<Wider<TA, TB>>(b[j]));
  }
}

// The same where rows of B lie across its memory: a block at a time, whose rows are those of A.
template <class TA, class TB>
void take_across(const Matrices& A, const Matrices& B, int64_t index, const int32_t* source, int64_t first,
                 int64_t rows) {
  using T = Wider<TA, TB>;
  TurnedBlock<T> block;
  for_each_block<T>(first, rows, A.cols, [&](int64_t row, int64_t col, int64_t height, int64_t width) {
    block.template load_rows<TB>(B, index, source + row, col, height, width);
    for (int64_t i = 0; i < height; ++i) {
      TA* a = A.matrix<TA>(index) + (row + i) * A.row_stride + col;
      for (int64_t j = 0; j < width; ++j) a[j] = rounded<TA>(block.row(i)[j]);
    }
  });
}

template <class S>
void scale(S* entries, int64_t stride, int64_t count, double factor) {
  using T = at::opmath_type<S>;
  for (int64_t j = 0; j < count; ++j) {
    entries[j * stride] = rounded<S>(static_cast<T>(factor) * static_cast<T>(entries[j * stride]));
  }
}

}  // namespace

at::Tensor Operations::row_sums(const Matrices& A, RowSum kind) {
  return kind == RowSum::magnitudes ? sums_of_rows<RowSum::magnitudes>(A) : sums_of_rows<RowSum::squares>(A);
}

void Operations::take_rows_(const Matrices& A, const Matrices& B, const at::Tensor& source) {
  const int32_t* numbers = source.const_data_ptr<int32_t>();
  TORCHDION_DISPATCH_FLOATING(A.dtype, "torchdion::take_rows_", [&] {
    using target_t = scalar_t;
    TORCHDION_DISPATCH_FLOATING(B.dtype, "torchdion::take_rows_", [&] {
      parallel_rows(A.count(), A.rows, grain_of(A), [&](int64_t index, int64_t first, int64_t rows) {
        const int32_t* of_matrix = numbers + index * A.rows;
        if (B.row_major()) {
          take<target_t, scalar_t>(A, B, index, of_matrix, first, rows);
        } else {
          take_across<target_t, scalar_t>(A, B, index, of_matrix, first, rows);
        }
      });
    });
  });
}

void Operations::scale_rows_(const Matrices& A, const at::Tensor& source, double factor, const float* left_out,
                             const float* unchanged) {
  if (left_out && *left_out != 0) return;
  const int32_t* numbers = source.const_data_ptr<int32_t>();
  const bool across = !A.row_major();
  const Matrices a = across ? A.t() : A;  // whose rows are contiguous
  TORCHDION_DISPATCH_FLOATING(A.dtype, "torchdion::scale_rows_", [&] {
    parallel_rows(a.count(), a.rows, grain_of(a), [&](int64_t index, int64_t first, int64_t rows) {
      if (unchanged && unchanged[index] != 0) return;
      const int32_t* of_matrix = numbers + index * A.rows;
      for (int64_t i = first; i < first + rows; ++i) {
        scalar_t* row = a.matrix<scalar_t>(index) + i * a.row_stride;
        if (!across) {
          if (of_matrix[i] >= 0) scale(row, 1, a.cols, factor);
          continue;
        }
        for (int64_t j = 0; j < a.cols; ++j) {
          if (of_matrix[j] >= 0) scale(row + j, 1, 1, factor);
        }
      }
    });
  });
}

}  // namespace torchdion::linalg::cpu
