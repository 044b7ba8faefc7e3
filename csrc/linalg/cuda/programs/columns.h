// The columns of factors: sums of squares, and the division by their roots.
#pragma once

#include <cmath>

#include "linalg/cuda/launch.h"
#include "linalg/cuda/storage.h"
#include "linalg/rules/row_sum.h"

namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE {

// Factors of which one block has some columns of one: threads lie along columns first, as the entries do in memory.
struct Columns {
  static constexpr int kWidth = 32;  // columns of a block
  int64_t rows, cols;

  int64_t blocks(int64_t count) const { return count * divide_up(cols, kWidth); }
  int64_t count(int64_t blocks) const { return blocks / divide_up(cols, kWidth); }
  TORCHDION_DEVICE int64_t matrix(int64_t block) const { return block / ((cols + kWidth - 1) / kWidth); }
  TORCHDION_DEVICE int64_t first(int64_t block) const { return block % ((cols + kWidth - 1) / kWidth) * kWidth; }
};

// In shared memory, one number for each of the block's columns: the sum over the rows, in an order that depends on the
// shape alone.
template <RowSum kind, class S, class Block>
TORCHDION_DEVICE void sum_columns(Block& block, const S* R, int64_t row_stride, Columns columns, int64_t first,
                                  double* sums) {
  constexpr int kWidth = Columns::kWidth, kHeight = Block::threads / kWidth;
  block.each([&](int t) {
    const int64_t col = first + t % kWidth;
    double sum = 0;
    if (col < columns.cols) {
      for (int64_t row = t / kWidth; row < columns.rows; row += kHeight) {
        sum += term_of<kind>(load(R[row * row_stride + col]));
      }
    }
    sums[t] = sum;
  });
  for (int height = kHeight / 2; height > 0; height /= 2) {
    block.each([&](int t) {
      if (t < height * kWidth) sums[t] += sums[t + height * kWidth];
    });
  }
}

// Q's columns ← R's over the roots of sums; where a sum is exactly zero the column of Q stays.
template <class SQ, class SR, class Block>
TORCHDION_DEVICE void divide_by_roots(Block& block, SQ* Q, int64_t q_stride, const SR* R, int64_t r_stride,
                                      Columns columns, int64_t first, double* sums) {
  constexpr int kWidth = Columns::kWidth, kHeight = Block::threads / kWidth;
  block.each([&](int t) {
    if (t < kWidth) sums[t] = 1 / sqrt(sums[t]);
  });
  block.each([&](int t) {
    const int64_t col = first + t % kWidth;
    const double inverse = sums[t % kWidth];
    if (col >= columns.cols || inverse == INFINITY) return;
    for (int64_t row = t / kWidth; row < columns.rows; row += kHeight) {
      store(Q[row * q_stride + col], static_cast<double>(load(R[row * r_stride + col])) * inverse);
    }
  });
}

// sums_of_columns ([count, cols]) ← the sums of R's columns.
template <class SR, RowSum kind>
struct ColumnSums {
  static constexpr int threads = 256;
  static constexpr size_t shared_bytes = threads * sizeof(double);
  void* const* R;
  int64_t row_stride;
  Columns columns;
  double* sums_of_columns;

  Work work(int64_t blocks) const {
    const int64_t count = columns.count(blocks);
    return {count * columns.cols * (columns.rows * int64_t{sizeof(SR)} + int64_t{sizeof(double)})};
  }

  template <class Block>
  TORCHDION_DEVICE void operator()(Block block) const {
    const int64_t matrix = columns.matrix(block.index()), first = columns.first(block.index());
    double* sums = block.template shared<double>();
    sum_columns<kind>(block, static_cast<const SR*>(R[matrix]), row_stride, columns, first, sums);
    block.each([&](int t) {
      if (t < Columns::kWidth && first + t < columns.cols) sums_of_columns[matrix * columns.cols + first + t] = sums[t];
    });
  }
};

// Q ← R with columns of unit length: by `squares` where they are given, which ranks may have summed, else by its own.
template <class SQ, class SR>
struct ColumnNormalize {
  static constexpr int threads = 256;
  static constexpr size_t shared_bytes = threads * sizeof(double);
  void* const* Q;
  void* const* R;
  int64_t q_stride, r_stride;
  Columns columns;
  const double* squares;  // or null

  Work work(int64_t blocks) const {
    const int64_t count = columns.count(blocks), squares_bytes = squares ? sizeof(double) : 0;
    return {count * columns.cols * (columns.rows * int64_t{sizeof(SQ) + sizeof(SR)} + squares_bytes)};
  }

  template <class Block>
  TORCHDION_DEVICE void operator()(Block block) const {
    const int64_t matrix = columns.matrix(block.index()), first = columns.first(block.index());
    const SR* source = static_cast<const SR*>(R[matrix]);
    double* sums = block.template shared<double>();
    if (squares) {
      block.each([&](int t) {
        const int64_t col = first + t;
        if (t < Columns::kWidth) sums[t] = col < columns.cols ? squares[matrix * columns.cols + col] : 0;
      });
    } else {
      sum_columns<RowSum::squares>(block, source, r_stride, columns, first, sums);
    }
    divide_by_roots(block, static_cast<SQ*>(Q[matrix]), q_stride, source, r_stride, columns, first, sums);
  }
};

}  // namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE
