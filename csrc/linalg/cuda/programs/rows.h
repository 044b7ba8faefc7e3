// Rows of matrices: their sums, lists that hold some of them, and what moves by them (linalg/rows.h, linalg/axpby.h).
#pragma once

#include "linalg/cuda/programs/columns.h"
#include "linalg/cuda/programs/elementwise.h"
#include "linalg/rules/row_sum.h"

namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE {

// sums ([count, rows]) ← of rows whose entries are contiguous; a block has one row.
template <class S, RowSum kind>
struct RowSums {
  static constexpr int threads = 256;
  static constexpr size_t shared_bytes = threads * sizeof(double);
  void* const* A;
  int64_t row_stride, rows, cols;
  double* sums;

  Work work(int64_t blocks) const { return {blocks * (cols * int64_t{sizeof(S)} + int64_t{sizeof(double)})}; }

  template <class Block>
  TORCHDION_DEVICE void operator()(Block block) const {
    const S* row = static_cast<const S*>(A[block.index() / rows]) + block.index() % rows * row_stride;
    double* partial = block.template shared<double>();
    block.each([&](int t) {
      double sum = 0;
      for (int64_t j = t; j < cols; j += threads) sum += term_of<kind>(load(row[j]));
      partial[t] = sum;
    });
    sum_of_threads(block, partial);
    once(block, [&] { sums[block.index()] = partial[0]; });
  }
};

// Contiguous lines of memory of which a warp has one: the rows of row-major matrices, the columns of others, where a
// list's rows lie across them.
struct Lines {
  static constexpr int threads = 256, kWarp = 32, kOfBlock = threads / kWarp;
  int64_t count, of_each, length;  // matrices, lines of each, entries of a line

  int64_t blocks() const { return divide_up(count * of_each, kOfBlock); }
  TORCHDION_DEVICE int64_t number(int64_t block, int t) const { return block * kOfBlock + t / kWarp; }
  TORCHDION_DEVICE bool is_there(int64_t number) const { return number < count * of_each; }
};

// M ← M + G as the rule has it, and sums ([count, rows]) ← Σ |b| of the new M's rows, which are contiguous, as are G's.
template <class SM, class SG>
struct AccumulateRows {
  static constexpr int threads = Lines::threads;
  static constexpr size_t shared_bytes = threads * sizeof(double);
  void* const* M;
  void* const* G;
  Lines lines;
  int64_t m_stride, g_stride;
  GradientRule rule;
  double* sums;

  Work work(int64_t) const {
    const int64_t rows = lines.count * lines.of_each;
    return {rows * (lines.length * int64_t{2 * sizeof(SM) + sizeof(SG)} + int64_t{sizeof(double)})};
  }

  template <class Block>
  TORCHDION_DEVICE void operator()(Block block) const {
    constexpr int kRun = 4, kAtOnce = 2, kStep = Lines::kWarp * kRun;
    double* partial = block.template shared<double>();
    block.each([&](int t) {
      const int64_t number = lines.number(block.index(), t);
      partial[t] = 0;
      if (!lines.is_there(number)) return;
      const int64_t matrix = number / lines.of_each, line = number - matrix * lines.of_each;
      SM* m = static_cast<SM*>(M[matrix]) + line * m_stride;
      const SG* g = static_cast<const SG*>(G[matrix]) + line * g_stride;
      const MomentumRule<SM, SG> momentum(rule, matrix);
      int64_t found = 0;
      double sum = 0;
      const auto add = [&](SM& entry, SG gradient) {
        momentum.add(entry, gradient, found);
        sum += term_of<RowSum::magnitudes>(load(entry));
      };
      each_in_runs<kRun, kAtOnce>(
          int64_t{t % Lines::kWarp} * kRun, lines.length, kStep, is_run_of<kRun>(m) && is_run_of<kRun>(g),
          [&](int64_t first) {
            Run<SM, kRun> of_m[kAtOnce];
            Run<SG, kRun> of_g[kAtOnce];
            TORCHDION_UNROLL
            for (int r = 0; r < kAtOnce; ++r) {
              of_m[r] = *reinterpret_cast<const Run<SM, kRun>*>(m + first + r * kStep);
              of_g[r] = *reinterpret_cast<const Run<SG, kRun>*>(g + first + r * kStep);
            }
            TORCHDION_UNROLL
            for (int r = 0; r < kAtOnce; ++r) {
              TORCHDION_UNROLL
              for (int e = 0; e < kRun; ++e) add(of_m[r].entries[e], of_g[r].entries[e]);
              write_run(m + first + r * kStep, of_m[r]);
            }
          },
          [&](int64_t i) { add(m[i], g[i]); });
      partial[t] = sum;
      momentum.count(block, found);
    });
    sum_of_threads(block, partial, Block::kWarp);
    block.each([&](int t) {
      const int64_t number = lines.number(block.index(), t);
      if (t % Lines::kWarp == 0 && lines.is_there(number)) sums[number] = partial[t];
    });
  }
};

// The same of columns.
template <class SM, class SG>
struct AccumulateColumns {
  static constexpr int threads = Columns::kThreads;
  static constexpr size_t shared_bytes = Columns::kHeight * Columns::kWidth * sizeof(double);
  void* const* M;
  void* const* G;
  Columns columns;
  int64_t m_stride, g_stride;
  GradientRule rule;
  double* sums;

  Work work(int64_t blocks) const {
    const int64_t all = columns.count(blocks) * columns.cols;
    return {all * (columns.rows * int64_t{2 * sizeof(SM) + sizeof(SG)} + int64_t{sizeof(double)})};
  }

  template <class Block>
  TORCHDION_DEVICE void operator()(Block block) const {
    constexpr int kRun = Columns::kRun;
    const int64_t matrix = columns.matrix(block.index()), first = columns.first(block.index());
    SM* m = static_cast<SM*>(M[matrix]);
    const SG* g = static_cast<const SG*>(G[matrix]);
    const MomentumRule<SM, SG> momentum(rule, matrix);
    double* partial = block.template shared<double>();
    block.each([&](int t) {
      const int64_t col = first + Columns::lane(t);
      double own[kRun] = {};
      int64_t found = 0;
      for (int64_t row = t / Columns::kLanes; row < columns.rows && col < columns.cols; row += Columns::kHeight) {
        Run<SM, kRun> of_m = columns.get(m, m_stride, row, col);
        const Run<SG, kRun> of_g = columns.get(g, g_stride, row, col);
        TORCHDION_UNROLL
        for (int e = 0; e < kRun; ++e) {
          if (col + e < columns.cols) momentum.add(of_m.entries[e], of_g.entries[e], found);
          own[e] += term_of<RowSum::magnitudes>(load(of_m.entries[e]));
        }
        columns.put(m, m_stride, row, col, of_m);
      }
      TORCHDION_UNROLL
      for (int e = 0; e < kRun; ++e) partial[t / Columns::kLanes * Columns::kWidth + Columns::lane(t) + e] = own[e];
      momentum.count(block, found);
    });
    merge_columns(block, partial, [](double a, double b) { return a + b; });
    block.each([&](int t) {
      if (t < Columns::kWidth && first + t < columns.cols) sums[matrix * columns.cols + first + t] = partial[t];
    });
  }
};

// Row j of A ← row rows[j] of B, or zeros where that is −1; and these rows of B ← factor · themselves. `across`: rows
// of B lie across the lines.
template <class SA, class SB>
struct TakeRows {
  static constexpr int threads = Lines::threads;
  void* const* A;  // or null: B alone is scaled
  void* const* B;
  Lines lines;  // A's rows with the entries of each; `across`: the entries of a row with A's rows in each
  Strides a, b;
  const int32_t* rows;  // [count, rows of A]
  bool across;
  RowDecay decay;  // of B

  Work work(int64_t) const {
    const int64_t entries = lines.count * lines.of_each * lines.length;
    const int64_t of_A = A ? sizeof(SA) : 0, of_B = sizeof(SB);
    return {entries * (of_A + (decay.factor == 1 ? 1 : 2) * of_B)};
  }

  template <class Block>
  TORCHDION_DEVICE void operator()(Block block) const {
    block.each([&](int t) {
      const int64_t number = lines.number(block.index(), t);
      if (!lines.is_there(number)) return;
      const int64_t matrix = number / lines.of_each, line = number - matrix * lines.of_each;
      const int32_t* of_matrix = rows + matrix * (across ? lines.length : lines.of_each);
      const bool scales = decay.factor != 1 && !decay.frozen.has(matrix);
      SA* to = A ? static_cast<SA*>(A[matrix]) : nullptr;
      SB* from = static_cast<SB*>(B[matrix]);
      if (across) {
        take_across(t % Lines::kWarp, to + (A ? line * a.col : 0), from + line * b.col, of_matrix, scales);
      } else {
        take(t % Lines::kWarp, A ? to + line * a.row : nullptr, from, of_matrix[line], scales);
      }
    });
  }

 private:
  using T = Wider<SA, SB>;
  using Own = ComputeType<SB>;

  TORCHDION_DEVICE void scale(SB& entry) const {
    store(entry, static_cast<Own>(decay.factor) * static_cast<Own>(load(entry)));
  }

  TORCHDION_DEVICE void take(int lane, SA* to, SB* from, int64_t row, bool scales) const {
    constexpr int kRun = 4, kAtOnce = 4, kStep = Lines::kWarp * kRun;
    if (row < 0) {
      for (int64_t e = lane; to && e < lines.length; e += Lines::kWarp) store(to[e * a.col], T(0));
      return;
    }
    from += row * b.row;
    const bool in_runs = b.col == 1 && is_run_of<kRun>(from) && (!to || (a.col == 1 && is_run_of<kRun>(to)));
    each_in_runs<kRun, kAtOnce>(
        int64_t{lane} * kRun, lines.length, kStep, in_runs,
        [&](int64_t first) {
          Run<SB, kRun> read[kAtOnce];
          TORCHDION_UNROLL
          for (int r = 0; r < kAtOnce; ++r) {
            read[r] = *reinterpret_cast<const Run<SB, kRun>*>(from + first + r * kStep);
          }
          TORCHDION_UNROLL
          for (int r = 0; r < kAtOnce; ++r) {
            Run<SA, kRun> taken;
            TORCHDION_UNROLL
            for (int e = 0; e < kRun; ++e) {
              store(taken.entries[e], static_cast<T>(load(read[r].entries[e])));
              scale(read[r].entries[e]);
            }
            if (to) write_run(to + first + r * kStep, taken);
            if (scales) write_run(from + first + r * kStep, read[r]);
          }
        },
        [&](int64_t e) {
          if (to) store(to[e * a.col], static_cast<T>(load(from[e * b.col])));
          if (scales) scale(from[e * b.col]);
        });
  }

  TORCHDION_DEVICE void take_across(int lane, SA* to, SB* from, const int32_t* of_matrix, bool scales) const {
    for (int64_t j = lane; j < lines.length; j += Lines::kWarp) {
      const int64_t row = of_matrix[j];
      if (to) store(to[j * a.row], row < 0 ? T(0) : static_cast<T>(load(from[row * b.row])));
      if (scales && row >= 0) scale(from[row * b.row]);
    }
  }
};

// X ← factors[1] X + factors[0] U as the rule has it, with rows of U as `source` chooses them and multiplied by
// `scale`. `across`: these are X's columns, and U's, as X lies in memory.
template <class SX, class SU>
struct AxpbyRows {
  static constexpr int threads = Lines::threads;
  void* const* X;
  void* const* U;
  Lines lines;          // of X
  int64_t x_stride;     // from line to line
  Strides u;            // of U, as X lies
  const void* factors;  // in the wider type
  DirectionRule rule;
  const int32_t* source;  // [count, rows], or null: each its own
  const void* scale;      // the same, in the wider type; or null
  bool across;
  int64_t of_U;  // entries of one U

  Work work(int64_t) const {
    return {lines.count * (lines.of_each * lines.length * int64_t{2 * sizeof(SX)} + of_U * int64_t{sizeof(SU)})};
  }

  template <class Block>
  TORCHDION_DEVICE void operator()(Block block) const {
    block.each([&](int t) {
      const int64_t number = lines.number(block.index(), t);
      if (!lines.is_there(number)) return;
      const int64_t matrix = number / lines.of_each, line = number - matrix * lines.of_each;
      if (rule.frozen.has(matrix)) return;
      const int64_t rows = across ? lines.length : lines.of_each;
      SX* x = static_cast<SX*>(X[matrix]) + line * x_stride;
      const SU* from = static_cast<const SU*>(U[matrix]);
      const int32_t* sources = source ? source + matrix * rows : nullptr;
      const T* scales = scale ? static_cast<const T*>(scale) + matrix * rows : nullptr;
      if (across) {
        move_across(t % Lines::kWarp, x, from + line * u.row, sources, scales);
      } else {
        const int64_t row = sources ? sources[line] : line;
        move(t % Lines::kWarp, x, row < 0 ? nullptr : from + row * u.row, scales ? scales[line] : T(1));
      }
    });
  }

 private:
  using T = Wider<SX, SU>;

  TORCHDION_DEVICE void put(SX& entry, T direction) const {
    const T* of_step = static_cast<const T*>(factors);
    store(entry, moved(static_cast<T>(load(entry)), direction, of_step[0], of_step[1], rule));
  }

  // `from`: a row of U, or null where there is none.
  TORCHDION_DEVICE void move(int lane, SX* x, const SU* from, T of_row) const {
    constexpr int kRun = 4, kAtOnce = 4, kStep = Lines::kWarp * kRun;
    const bool in_runs = is_run_of<kRun>(x) && (!from || (u.col == 1 && is_run_of<kRun>(from)));
    each_in_runs<kRun, kAtOnce>(
        int64_t{lane} * kRun, lines.length, kStep, in_runs,
        [&](int64_t first) {
          Run<SX, kRun> of_x[kAtOnce];
          Run<SU, kRun> of_u[kAtOnce];
          TORCHDION_UNROLL
          for (int r = 0; r < kAtOnce; ++r) {
            of_x[r] = *reinterpret_cast<const Run<SX, kRun>*>(x + first + r * kStep);
            if (from) of_u[r] = *reinterpret_cast<const Run<SU, kRun>*>(from + first + r * kStep);
          }
          TORCHDION_UNROLL
          for (int r = 0; r < kAtOnce; ++r) {
            TORCHDION_UNROLL
            for (int e = 0; e < kRun; ++e) {
              put(of_x[r].entries[e], from ? static_cast<T>(load(of_u[r].entries[e])) * of_row : T(0));
            }
            write_run(x + first + r * kStep, of_x[r]);
          }
        },
        [&](int64_t e) { put(x[e], from ? static_cast<T>(load(from[e * u.col])) * of_row : T(0)); });
  }

  TORCHDION_DEVICE void move_across(int lane, SX* x, const SU* from, const int32_t* sources, const T* scales) const {
    constexpr int kRun = 4, kAtOnce = 2, kStep = Lines::kWarp * kRun;
    const auto direction = [&](int64_t e) {
      const int64_t col = sources ? sources[e] : e;
      return col < 0 ? T(0) : static_cast<T>(load(from[col * u.col])) * (scales ? scales[e] : T(1));
    };
    each_in_runs<kRun, kAtOnce>(
        int64_t{lane} * kRun, lines.length, kStep, is_run_of<kRun>(x),
        [&](int64_t first) {
          Run<SX, kRun> of_x[kAtOnce];
          T of_u[kAtOnce][kRun];
          TORCHDION_UNROLL
          for (int r = 0; r < kAtOnce; ++r) {
            of_x[r] = *reinterpret_cast<const Run<SX, kRun>*>(x + first + r * kStep);
            TORCHDION_UNROLL
            for (int e = 0; e < kRun; ++e) of_u[r][e] = direction(first + r * kStep + e);
          }
          TORCHDION_UNROLL
          for (int r = 0; r < kAtOnce; ++r) {
            TORCHDION_UNROLL
            for (int e = 0; e < kRun; ++e) put(of_x[r].entries[e], of_u[r][e]);
            write_run(x + first + r * kStep, of_x[r]);
          }
        },
        [&](int64_t e) { put(x[e], direction(e)); });
  }
};

}  // namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE
