// Rows of matrices: their sums, and lists that hold some of them (linalg/rows.h, linalg/axpby.h).
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
    for (int half = threads / 2; half > 0; half /= 2) {
      block.each([&](int t) {
        if (t < half) partial[t] += partial[t + half];
      });
    }
    block.each([&](int t) {
      if (t == 0) sums[block.index()] = partial[0];
    });
  }
};

// Numbers of rows, one for each row of each matrix of a list, as programs read them that walk along memory: `across`
// where rows of the list lie across contiguous ones.
struct RowNumbers {
  const int32_t* source;  // or null: each row's own
  int64_t rows;
  bool across;

  TORCHDION_DEVICE int64_t line(int64_t row, int64_t col) const { return across ? col : row; }
  TORCHDION_DEVICE int64_t of(int64_t matrix, int64_t line) const {
    return source ? source[matrix * rows + line] : line;
  }
};

// Calls body(row, col) for the entries of a block's chunk, in the order of rows×cols.
template <class Block, class Body>
TORCHDION_DEVICE void each_entry(Block& block, const Pairs& pairs, const Body& body) {
  const int64_t numel = pairs.rows * pairs.cols, begin = block.index() % pairs.chunks() * Pairs::kChunk;
  block.each([&](int t) {
    for (int i = 0; i < kElementsPerThread; ++i) {
      const int64_t element = begin + t + i * Block::threads;
      if (element >= numel) break;
      body(element / pairs.cols, element % pairs.cols);
    }
  });
}

// Row i of A ← row source[i] of B, or zeros. `across`: in the order of B's memory, whose columns are contiguous.
template <class SA, class SB>
struct TakeRows {
  static constexpr int threads = 256;
  void* const* A;
  void* const* B;
  Pairs pairs;  // of A and B; where rows of B lie across its memory, of their transposes
  RowNumbers numbers;

  Work work(int64_t blocks) const { return {pairs.entries(blocks) * int64_t{sizeof(SA) + sizeof(SB)}}; }

  template <class Block>
  TORCHDION_DEVICE void operator()(Block block) const {
    using T = Wider<SA, SB>;
    const int64_t matrix = pairs.matrix(block.index());
    SA* a = static_cast<SA*>(A[matrix]);
    const SB* b = static_cast<const SB*>(B[matrix]);
    each_entry(block, pairs, [&](int64_t row, int64_t col) {
      const int64_t from = numbers.of(matrix, numbers.line(row, col));
      const int64_t place =
          numbers.across ? row * pairs.b.row + from * pairs.b.col : from * pairs.b.row + col * pairs.b.col;
      store(a[row * pairs.a.row + col * pairs.a.col], from < 0 ? T(0) : static_cast<T>(load(b[place])));
    });
  }
};

// Chosen rows of A ← factor · themselves.
template <class S>
struct ScaleRows {
  static constexpr int threads = 256;
  void* const* A;
  Pairs pairs;  // of A alone, in the order of its memory
  RowNumbers numbers;
  double factor;
  const float* left_out;   // or null
  const float* unchanged;  // or null

  Work work(int64_t blocks) const { return {pairs.entries(blocks) * int64_t{2 * sizeof(S)}}; }

  template <class Block>
  TORCHDION_DEVICE void operator()(Block block) const {
    using T = Wider<S, S>;
    const int64_t matrix = pairs.matrix(block.index());
    if ((left_out && *left_out != 0) || (unchanged && unchanged[matrix] != 0)) return;
    S* a = static_cast<S*>(A[matrix]);
    const T scale = static_cast<T>(factor);
    each_entry(block, pairs, [&](int64_t row, int64_t col) {
      if (numbers.of(matrix, numbers.line(row, col)) < 0) return;
      S& entry = a[row * pairs.a.row + col];
      store(entry, scale * static_cast<T>(load(entry)));
    });
  }
};

// X ← factors[1] X + factors[0] U as the rule has it, with rows of U as `numbers` choose them and multiplied by
// `scale`.
template <class SX, class SU>
struct AxpbyRows {
  static constexpr int threads = 256;
  void* const* X;
  void* const* U;
  Pairs pairs;             // in the order of X's memory
  const void* factors;     // in the wider type
  const float* unchanged;  // or null
  DirectionRule rule;
  RowNumbers numbers;
  const void* scale;  // or null; in the wider type, one for each row
  int64_t of_U;       // entries of one U

  Work work(int64_t blocks) const {
    const int64_t count = blocks / pairs.chunks();
    return {pairs.entries(blocks) * int64_t{2 * sizeof(SX)} + count * of_U * int64_t{sizeof(SU)}};
  }

  template <class Block>
  TORCHDION_DEVICE void operator()(Block block) const {
    using T = Wider<SX, SU>;
    const int64_t matrix = pairs.matrix(block.index());
    if (unchanged && unchanged[matrix] != 0) return;
    SX* x = static_cast<SX*>(X[matrix]);
    const SU* u = static_cast<const SU*>(U[matrix]);
    const T update = static_cast<const T*>(factors)[0], keep = static_cast<const T*>(factors)[1];
    const T* scales = scale ? static_cast<const T*>(scale) + matrix * numbers.rows : nullptr;
    each_entry(block, pairs, [&](int64_t row, int64_t col) {
      const int64_t line = numbers.line(row, col), from = numbers.of(matrix, line);
      T direction = 0;
      if (from >= 0) {
        const int64_t place =
            numbers.across ? row * pairs.b.row + from * pairs.b.col : from * pairs.b.row + col * pairs.b.col;
        direction = static_cast<T>(load(u[place])) * (scales ? scales[line] : T(1));
      }
      SX& entry = x[row * pairs.a.row + col];
      store(entry, moved(static_cast<T>(load(entry)), direction, update, keep, rule));
    });
  }
};

}  // namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE
