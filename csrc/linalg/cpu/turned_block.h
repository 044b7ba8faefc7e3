// Matrices whose contiguous dimension is not the one that a kernel walks along, a block at a time: entries that lie at
// a large stride share few sets of a cache, and a block has its rows in all of them.
#pragma once

#include <algorithm>

#include "linalg/cpu/convert.h"
#include "linalg/matrices.h"

namespace torchdion::linalg::cpu {

template <class T>
class TurnedBlock {
 public:
  // As many rows as fill a cache line of BF16 entries, and as many columns as fit the first-level cache with them.
  static constexpr int64_t kRows = 32, kCols = 256;

  T* row(int64_t i) { return entries + i * kPitch; }

  // Rows and columns of A from (row, col) on.
  template <class S>
  void load(const Matrices& A, int64_t index, int64_t row, int64_t col, int64_t rows, int64_t cols) {
    const S* from = A.matrix<const S>(index) + row * A.row_stride + col * A.col_stride;
    for (int64_t j = 0; j < cols; ++j) {
      if (A.row_stride == 1) fetch(from + (j + kAhead) * A.col_stride, rows);
      for (int64_t i = 0; i < rows; ++i) {
        entries[i * kPitch + j] = static_cast<T>(from[i * A.row_stride + j * A.col_stride]);
      }
    }
  }

  // The same, with row numbers[i] of A, or zeros where that is −1, as row i.
  template <class S>
  void load_rows(const Matrices& A, int64_t index, const int32_t* numbers, int64_t col, int64_t rows, int64_t cols) {
    for (int64_t j = 0; j < cols; ++j) {
      const S* from = A.matrix<const S>(index) + (col + j) * A.col_stride;
      for (int64_t i = 0; i < rows; ++i) {
        entries[i * kPitch + j] = numbers[i] < 0 ? T(0) : static_cast<T>(from[numbers[i] * A.row_stride]);
      }
    }
  }

  template <class S>
  void store(const Matrices& A, int64_t index, int64_t row, int64_t col, int64_t rows, int64_t cols) const {
    S* to = A.matrix<S>(index) + row * A.row_stride + col * A.col_stride;
    for (int64_t j = 0; j < cols; ++j) {
      for (int64_t i = 0; i < rows; ++i) {
        to[i * A.row_stride + j * A.col_stride] = rounded<S>(entries[i * kPitch + j]);
      }
    }
  }

 private:
  static constexpr int64_t kPitch = kCols + 16;
  static constexpr int64_t kAhead = 16;  // columns that are asked for before they are read: no processor foresees them

  template <class S>
  static void fetch(const S* from, int64_t count) {
    for (int64_t i = 0; i < count; i += 64 / sizeof(S)) __builtin_prefetch(from + i);
  }

  alignas(64) T entries[kRows * kPitch];
};

// Calls body(row, col, rows, cols) for the blocks of these rows.
template <class T, class Body>
void for_each_block(int64_t first, int64_t rows, int64_t cols, const Body& body) {
  using Block = TurnedBlock<T>;
  for (int64_t row = first; row < first + rows; row += Block::kRows) {
    for (int64_t col = 0; col < cols; col += Block::kCols) {
      body(row, col, std::min(Block::kRows, first + rows - row), std::min(Block::kCols, cols - col));
    }
  }
}

// Calls body(row, col, cols, entries) for these rows of a matrix, each whole or in pieces whose entries are contiguous:
// where they lie, or as T.
template <class T, class S, class Body>
void for_each_run_of_rows(const Matrices& A, int64_t index, int64_t first, int64_t rows, const Body& body) {
  if (A.col_stride == 1) {
    for (int64_t row = first; row < first + rows; ++row) {
      body(row, 0, A.cols, A.matrix<const S>(index) + row * A.row_stride);
    }
    return;
  }
  TurnedBlock<T> block;
  for_each_block<T>(first, rows, A.cols, [&](int64_t row, int64_t col, int64_t height, int64_t width) {
    block.template load<S>(A, index, row, col, height, width);
    for (int64_t i = 0; i < height; ++i) body(row + i, col, width, static_cast<const T*>(block.row(i)));
  });
}

}  // namespace torchdion::linalg::cpu
