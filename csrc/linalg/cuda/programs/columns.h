// The columns of factors: sums of squares, and the division by their roots.
#pragma once

#include <cmath>

#include "linalg/cuda/launch.h"
#include "linalg/cuda/programs/elementwise.h"
#include "linalg/cuda/storage.h"
#include "linalg/rules/row_sum.h"

namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE {

// Factors of which one block has some columns of one: threads lie along columns first, as the entries do in memory, and
// each has kRun neighbours, which it reads and writes at once where they are aligned.
struct Columns {
  static constexpr int kRun = 4, kLanes = 8, kWidth = kRun * kLanes;
  static constexpr int kThreads = 512, kHeight = kThreads / kLanes;
  static constexpr int kAhead = 2;  // rows that a thread reads before it uses the first
  int64_t rows, cols;

  int64_t blocks(int64_t count) const { return count * divide_up(cols, kWidth); }
  int64_t count(int64_t blocks) const { return blocks / divide_up(cols, kWidth); }
  TORCHDION_DEVICE int64_t matrix(int64_t block) const { return block / ((cols + kWidth - 1) / kWidth); }
  TORCHDION_DEVICE int64_t first(int64_t block) const { return block % ((cols + kWidth - 1) / kWidth) * kWidth; }
  static TORCHDION_DEVICE int lane(int t) { return t % kLanes * kRun; }  // of the block's columns, a thread's first

  template <class S>
  TORCHDION_DEVICE bool takes_runs(const S* data, int64_t row_stride, int64_t col) const {
    return col + kRun <= cols && row_stride % kRun == 0 && is_aligned(data);
  }

  // The entries of one row from a column on, as far as there are columns; zeros beyond.
  template <class S>
  TORCHDION_DEVICE Run<S, kRun> get(const S* data, int64_t row_stride, int64_t row, int64_t col) const {
    const S* place = data + row * row_stride + col;
    if (takes_runs(data, row_stride, col)) return *reinterpret_cast<const Run<S, kRun>*>(place);
    Run<S, kRun> run{};
    for (int i = 0; i < kRun && col + i < cols; ++i) run.entries[i] = place[i];
    return run;
  }
  template <class S>
  TORCHDION_DEVICE void put(S* data, int64_t row_stride, int64_t row, int64_t col, const Run<S, kRun>& run) const {
    S* place = data + row * row_stride + col;
    if (takes_runs(data, row_stride, col)) {
      write_run(place, run);
      return;
    }
    for (int i = 0; i < kRun && col + i < cols; ++i) place[i] = run.entries[i];
  }

  // f(row, run) of a thread's rows in their order. f may write what it was given.
  template <class S, class F>
  TORCHDION_DEVICE void each_run(const S* R, int64_t row_stride, int64_t first, int t, F f) const {
    const int64_t col = first + lane(t);
    if (col >= cols) return;
    for (int64_t row = t / kLanes; row < rows; row += kAhead * kHeight) {
      Run<S, kRun> runs[kAhead];
      TORCHDION_UNROLL
      for (int i = 0; i < kAhead; ++i) {
        if (row + i * kHeight < rows) runs[i] = get(R, row_stride, row + i * kHeight, col);
      }
      TORCHDION_UNROLL
      for (int i = 0; i < kAhead; ++i) {
        if (row + i * kHeight < rows) f(row + i * kHeight, runs[i]);
      }
    }
  }
};

// In shared memory ([kHeight, kWidth]), the first row: of each of the block's columns what `merge` makes of all
// threads' numbers, in an order that depends on the shape alone.
template <class T, class Block, class Merge>
TORCHDION_DEVICE void merge_columns(Block& block, T* numbers, const Merge& merge) {
  for (int height = Columns::kHeight / 2; height > 0; height /= 2) {
    block.each([&](int t) {
      for (int e = t; e < height * Columns::kWidth; e += Columns::kThreads) {
        numbers[e] = merge(numbers[e], numbers[e + height * Columns::kWidth]);
      }
    });
  }
}

// The same of the sums over the rows.
template <RowSum kind, class S, class Block>
TORCHDION_DEVICE void sum_columns(Block& block, const S* R, int64_t row_stride, Columns columns, int64_t first,
                                  double* sums) {
  constexpr int kRun = Columns::kRun;
  block.each([&](int t) {
    double own[kRun] = {};
    columns.each_run(R, row_stride, first, t, [&](int64_t, const Run<S, kRun>& run) {
      TORCHDION_UNROLL
      for (int i = 0; i < kRun; ++i) own[i] += term_of<kind>(load(run.entries[i]));
    });
    TORCHDION_UNROLL
    for (int i = 0; i < kRun; ++i) sums[t / Columns::kLanes * Columns::kWidth + Columns::lane(t) + i] = own[i];
  });
  merge_columns(block, sums, [](double a, double b) { return a + b; });
}

// sums_of_columns ([count, cols]) ← the sums of R's columns.
template <class SR, RowSum kind>
struct ColumnSums {
  static constexpr int threads = Columns::kThreads, blocks_at_once = 2;
  static constexpr size_t shared_bytes = Columns::kHeight * Columns::kWidth * sizeof(double);
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
// Beside it U ← Q − s R. Where a sum is exactly zero the column of Q stays, and that of U is zero.
template <class SQ, class SR, class SU>
struct ColumnNormalize {
  using T = Wider<SR, SR>;
  static constexpr int threads = Columns::kThreads, blocks_at_once = 2;
  static constexpr size_t shared_bytes = Columns::kHeight * Columns::kWidth * sizeof(double);
  void* const* Q;
  void* const* R;
  int64_t q_stride, r_stride;
  Columns columns;
  const double* squares;  // or null
  SU* U;                  // [count, rows, cols], or null
  BFloat16* copy_of_R;    // likewise
  const T* scales;        // s of each matrix; or null: 0

  Work work(int64_t blocks) const {
    const int64_t count = columns.count(blocks), squares_bytes = squares ? sizeof(double) : 0;
    const int64_t copied = (U ? int64_t{sizeof(SU)} : 0) + (copy_of_R ? int64_t{sizeof(BFloat16)} : 0);
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
      const int64_t col = first + Columns::lane(t), copied = matrix * columns.rows * columns.cols;
      const double scale = scales ? scales[matrix] : 0;
      const double* inverse = sums + Columns::lane(t);
      bool stays = false;
      for (int i = 0; i < Columns::kRun; ++i) stays = stays || inverse[i] == INFINITY;
      columns.each_run(source, r_stride, first, t, [&](int64_t row, const Run<SR, Columns::kRun>& run) {
        Run<SQ, Columns::kRun> of_Q;
        Run<SU, Columns::kRun> of_U;
        Run<BFloat16, Columns::kRun> copy_of_run;
        if (stays) of_Q = columns.get(target, q_stride, row, col);  // some keep what they have
        TORCHDION_UNROLL
        for (int i = 0; i < Columns::kRun; ++i) {
          const double entry = load(run.entries[i]);
          const double unit = inverse[i] == INFINITY ? load(of_Q.entries[i]) : entry * inverse[i];
          store(copy_of_run.entries[i], entry);
          if (inverse[i] != INFINITY) store(of_Q.entries[i], unit);
          store(of_U.entries[i], inverse[i] == INFINITY ? 0 : scales ? unit - scale * entry : unit);
        }
        columns.put(target, q_stride, row, col, of_Q);
        if (U) columns.put(U + copied, columns.cols, row, col, of_U);
        if (copy_of_R) columns.put(copy_of_R + copied, columns.cols, row, col, copy_of_run);
      });
    });
  }
};

// P's columns times 2^-exponent, whose largest entries are then within 2⁻⁴⁰ and 2⁴⁰, so that FP32 holds the sums of
// their squares; and rounded to so many mantissa bits.
template <class S, int Kept>
struct ScaleColumns {
  static constexpr int threads = Columns::kThreads, kLargestExponent = 40;
  static constexpr size_t shared_bytes = Columns::kHeight * Columns::kWidth * sizeof(float);
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
    constexpr int kRun = Columns::kRun;
    const int64_t matrix = columns.matrix(block.index()), first = columns.first(block.index());
    S* entries = P + matrix * columns.rows * columns.cols;
    float* largest = block.template shared<float>();
    block.each([&](int t) {
      float own[kRun] = {};
      columns.each_run(entries, columns.cols, first, t, [&](int64_t, const Run<S, kRun>& run) {
        TORCHDION_UNROLL
        for (int i = 0; i < kRun; ++i) {
          const float entry = load(run.entries[i]);
          own[i] = larger(own[i], entry < 0 ? -entry : entry);
        }
      });
      TORCHDION_UNROLL
      for (int i = 0; i < kRun; ++i) largest[t / Columns::kLanes * Columns::kWidth + Columns::lane(t) + i] = own[i];
    });
    merge_columns(block, largest, [](float a, float b) { return larger(a, b); });
    block.each([&](int t) {
      const int64_t col = first + Columns::lane(t);
      int exponent[kRun];
      bool writes = kRounds;
      TORCHDION_UNROLL
      for (int i = 0; i < kRun; ++i) {
        exponent[i] = exponent_of(largest[Columns::lane(t) + i]);
        writes = writes || exponent[i] != 0;
        if (t < Columns::kLanes && col + i < columns.cols) exponents[matrix * columns.cols + col + i] = exponent[i];
      }
      if (!writes) return;
      columns.each_run(entries, columns.cols, first, t, [&](int64_t row, Run<S, kRun> run) {
        TORCHDION_UNROLL
        for (int i = 0; i < kRun; ++i) {
          const float entry = load(run.entries[i]);
          const float scaled = exponent[i] == 0 ? entry : static_cast<float>(ldexp(entry, -exponent[i]));
          store(run.entries[i], kRounds ? round_mantissa<Kept>(scaled) : scaled);
        }
        columns.put(entries, columns.cols, row, col, run);
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
};

}  // namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE
