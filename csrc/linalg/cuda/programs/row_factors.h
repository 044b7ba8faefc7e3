// The factors of rows (linalg/rows.h).
#pragma once

#include <cmath>

#include "linalg/cuda/launch.h"
#include "linalg/cuda/programs/sums.h"
#include "linalg/cuda/storage.h"
#include "linalg/step_numbers.h"

namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE {

// A block has one matrix.
template <class S>
struct RowVariances {
  static constexpr int threads = 256;
  static constexpr size_t shared_bytes = 2 * threads * sizeof(double);
  void* const* v;
  int64_t row_stride, rows, of_update;  // rows of v, and of the update
  const double* squares;                // [count, of_update]
  const int32_t* source;                // [count, rows], or null
  VarianceRule rule;
  double *factors, *norms;  // [count, rows], [count, 2]

  Work work(int64_t blocks) const {
    const int64_t of_row = (source ? sizeof(int32_t) : 0) + 2 * sizeof(S) + sizeof(double);
    return {blocks * (rows * of_row + (of_update + 2) * int64_t{sizeof(double)})};
  }

  template <class Block>
  TORCHDION_DEVICE void operator()(Block block) const {
    using T = ComputeType<S>;
    const int64_t matrix = block.index();
    const bool stays = rule.frozen.has(matrix);
    S* own_v = static_cast<S*>(v[matrix]);
    double *before = block.template shared<double>(), *after = before + threads;
    block.each([&](int t) {
      before[t] = after[t] = 0;
      for (int64_t i = t; i < rows; i += threads) {
        const int64_t place = matrix * rows + i, row = source ? source[place] : i;
        factors[place] = 0;
        if (row < 0) continue;
        const double square = squares[matrix * of_update + row], old = static_cast<double>(load(own_v[i * row_stride]));
        const double variance = old * rule.beta2 + square * ((1 - rule.beta2) / static_cast<double>(rule.n));
        const double factor = 1 / (sqrt(variance) + VarianceRule::kEpsilon);
        factors[place] = factor;
        before[t] += square;
        after[t] += square * (factor * factor);
        if (!stays) store(own_v[i * row_stride], static_cast<T>(variance));
      }
    });
    sum_of_threads(block, before);
    sum_of_threads(block, after);
    once(block, [&] {
      norms[2 * matrix] = before[0];
      norms[2 * matrix + 1] = after[0];
    });
  }
};

// out ([count, rows]) ← factors · sqrt(norms₀ / norms₁), or 0 where norms₁ is.
template <class T>
struct KeepNorms {
  static constexpr int threads = 256;
  const double *factors, *norms;
  T* out;
  int64_t rows, count;

  int64_t blocks() const { return divide_up(count * rows, threads); }
  Work work(int64_t) const {
    return {count * (rows * int64_t{sizeof(double) + sizeof(T)} + 2 * int64_t{sizeof(double)})};
  }

  template <class Block>
  TORCHDION_DEVICE void operator()(Block block) const {
    block.each([&](int t) {
      const int64_t i = block.index() * threads + t;
      if (i >= count * rows) return;
      const double before = norms[i / rows * 2], after = norms[i / rows * 2 + 1];
      out[i] = static_cast<T>(factors[i] * (after == 0 ? 0 : sqrt(before / after)));
    });
  }
};

}  // namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE
