// The columns of factors: sums of squares, and the division by their roots.
#pragma once

#include <cmath>

#include "linalg/cuda/launch.h"
#include "linalg/cuda/storage.h"
#include "linalg/rules/row_sum.h"

namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE {

// Factors of which one block has some columns of one: threads lie along columns first, as the entries do in memory.
struct Columns {
  static constexpr int kWidth = 16;  // columns of a block: 32 bytes of a row, the least that memory gives, in BF16
  static constexpr int kThreads = 1024, kHeight = kThreads / kWidth;
  static constexpr int kAhead = 4;  // rows that a thread reads before it uses the first
  int64_t rows, cols;

  int64_t blocks(int64_t count) const { return count * divide_up(cols, kWidth); }
  int64_t count(int64_t blocks) const { return blocks / divide_up(cols, kWidth); }
  TORCHDION_DEVICE int64_t matrix(int64_t block) const { return block / ((cols + kWidth - 1) / kWidth); }
  TORCHDION_DEVICE int64_t first(int64_t block) const { return block % ((cols + kWidth - 1) / kWidth) * kWidth; }

  // f(row, entry) of a column's rows row, row + kHeight, … in their order. f may write what it was given.
  template <class S, class F>
  TORCHDION_DEVICE void each_entry(const S* R, int64_t row_stride, int64_t col, int64_t row, F f) const {
    using Entry = decltype(load(*R));
    if (col >= cols) return;
    for (; row < rows; row += kAhead * kHeight) {
      Entry entries[kAhead];
      TORCHDION_UNROLL
      for (int i = 0; i < kAhead; ++i) {
        if (row + i * kHeight < rows) entries[i] = load(R[(row + i * kHeight) * row_stride + col]);
      }
      TORCHDION_UNROLL
      for (int i = 0; i < kAhead; ++i) {
        if (row + i * kHeight < rows) f(row + i * kHeight, entries[i]);
      }
    }
  }
};

// In shared memory, one number for each of the block's columns: the sum over the rows, in an order that depends on the
// shape alone.
template <RowSum kind, class S, class Block>
TORCHDION_DEVICE void sum_columns(Block& block, const S* R, int64_t row_stride, Columns columns, int64_t first,
                                  double* sums) {
  constexpr int kWidth = Columns::kWidth, kHeight = Columns::kHeight;
  block.each([&](int t) {
    double sum = 0;
    columns.each_entry(R, row_stride, first + t % kWidth, t / kWidth,
                       [&](int64_t, auto entry) { sum += term_of<kind>(entry); });
    sums[t] = sum;
  });
  for (int height = kHeight / 2; height > 0; height /= 2) {
    block.each([&](int t) {
      if (t < height * kWidth) sums[t] += sums[t + height * kWidth];
    });
  }
}

// sums_of_columns ([count, cols]) ← the sums of R's columns.
template <class SR, RowSum kind>
struct ColumnSums {
  static constexpr int threads = Columns::kThreads;
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
// Where a sum is exactly zero the column of Q stays, and that of its copy.
template <class SQ, class SR>
struct ColumnNormalize {
  static constexpr int threads = Columns::kThreads;
  static constexpr size_t shared_bytes = threads * sizeof(double);
  void* const* Q;
  void* const* R;
  int64_t q_stride, r_stride;
  Columns columns;
  const double* squares;            // or null
  BFloat16 *copy_of_Q, *copy_of_R;  // [count, rows, cols], or null

  Work work(int64_t blocks) const {
    const int64_t count = columns.count(blocks), squares_bytes = squares ? sizeof(double) : 0;
    const int64_t copied = ((copy_of_Q ? 1 : 0) + (copy_of_R ? 1 : 0)) * int64_t{sizeof(BFloat16)};
    return {count * columns.cols * (columns.rows * (int64_t{sizeof(SQ) + sizeof(SR)} + copied) + squares_bytes)};
  }

  template <class Block>
  TORCHDION_DEVICE void operator()(Block block) const {
    constexpr int kWidth = Columns::kWidth;
    const int64_t matrix = columns.matrix(block.index()), first = columns.first(block.index());
    const SR* source = static_cast<const SR*>(R[matrix]);
    SQ* target = static_cast<SQ*>(Q[matrix]);
    double* sums = block.template shared<double>();
    if (squares) {
      block.each([&](int t) {
        const int64_t col = first + t;
        if (t < kWidth) sums[t] = col < columns.cols ? squares[matrix * columns.cols + col] : 0;
      });
    } else {
      sum_columns<RowSum::squares>(block, source, r_stride, columns, first, sums);
    }
    block.each([&](int t) {
      if (t < kWidth) sums[t] = 1 / sqrt(sums[t]);
    });
    block.each([&](int t) {
      const int64_t col = first + t % kWidth;
      const double inverse = sums[t % kWidth];
      const bool stays = inverse == INFINITY;
      if (stays && !copy_of_R) return;
      columns.each_entry(source, r_stride, col, t / kWidth, [&](int64_t row, auto entry) {
        const double value = static_cast<double>(entry);
        const int64_t place = (matrix * columns.rows + row) * columns.cols + col;  // of a copy
        if (copy_of_R) store(copy_of_R[place], value);
        if (stays) return;
        store(target[row * q_stride + col], value * inverse);
        if (copy_of_Q) store(copy_of_Q[place], value * inverse);
      });
    });
  }
};

// P's columns times 2^-exponent, whose largest entries are then within 2⁻⁴⁰ and 2⁴⁰, so that FP32 holds the sums of
// their squares; and rounded to so many mantissa bits.
template <class S, int Kept>
struct ScaleColumns {
  static constexpr int threads = Columns::kThreads, kLargestExponent = 40;
  static constexpr size_t shared_bytes = threads * sizeof(float);
  static constexpr bool kRounds = sizeof(S) == sizeof(float) && Kept < 23;
  S* P;  // [count, rows, cols]
  Columns columns;
  int* exponents;  // [count, cols]

  // Columns are seldom so far from 1 that they are written for that alone.
  Work work(int64_t blocks) const {
    const int64_t count = columns.count(blocks), accesses = kRounds ? 2 : 1;
    return {count * columns.cols * (columns.rows * accesses * int64_t{sizeof(S)} + int64_t{sizeof(int)})};
  }

  template <class Block>
  TORCHDION_DEVICE void operator()(Block block) const {
    constexpr int kWidth = Columns::kWidth, kHeight = Columns::kHeight;
    const int64_t matrix = columns.matrix(block.index()), first = columns.first(block.index());
    S* entries = P + matrix * columns.rows * columns.cols;
    float* largest = block.template shared<float>();
    block.each([&](int t) {
      float own = 0;
      columns.each_entry(entries, columns.cols, first + t % kWidth, t / kWidth, [&](int64_t, float entry) {
        const float magnitude = entry < 0 ? -entry : entry;
        if (!(magnitude <= own)) own = magnitude;
      });
      largest[t] = own;
    });
    for (int height = kHeight / 2; height > 0; height /= 2) {
      block.each([&](int t) {
        if (t < height * kWidth && !(largest[t + height * kWidth] <= largest[t])) {
          largest[t] = largest[t + height * kWidth];
        }
      });
    }
    block.each([&](int t) {
      const int64_t col = first + t % kWidth;
      const int exponent = exponent_of(largest[t % kWidth]);
      if (t < kWidth && col < columns.cols) exponents[matrix * columns.cols + col] = exponent;
      if (!kRounds && exponent == 0) return;
      columns.each_entry(entries, columns.cols, col, t / kWidth, [&](int64_t row, float entry) {
        store(entries[row * columns.cols + col], rounded(static_cast<float>(ldexp(entry, -exponent))));
      });
    });
  }

  // 0 where there is nothing to scale, or where scaling is no help.
  static TORCHDION_DEVICE int exponent_of(float largest) {
    if (largest == 0 || largest - largest != 0) return 0;
    int exponent = 0;
    frexp(largest, &exponent);
    return exponent > kLargestExponent || exponent < -kLargestExponent ? exponent : 0;
  }

  static TORCHDION_DEVICE float rounded(float entry) {
    if constexpr (kRounds) {
      return round_mantissa<Kept>(entry);
    } else {
      return entry;
    }
  }
};

}  // namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE
