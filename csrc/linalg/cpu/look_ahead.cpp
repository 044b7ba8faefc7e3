#include "linalg/accumulate.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "linalg/cpu/avx512.h"
#include "linalg/cpu/convert.h"
#include "linalg/cpu/operations.h"
#include "linalg/cpu/parallel_rows.h"
#include "linalg/cpu/turned_block.h"

namespace torchdion::linalg::cpu {

namespace {

// What the entries of one matrix have in common.
template <class T>
struct Numbers {
  T keep, factor, of_gradient, of_momentum;
  bool zeroes, keeps_all;
};

// m ← keep m + factor g;  l ← of_gradient · factor g + of_momentum · m. Returns how many entries of g were not finite,
// if these count as zero.
template <class T, class TM, class TG>
[[gnu::always_inline]] inline int64_t step_entries(T* l, TM* m, const TG* g, int64_t g_stride, int64_t count,
                                                   const Numbers<T>& numbers) {
  const T keep = numbers.keep, factor = numbers.factor, least = least_momentum<TM>();
  const T of_gradient = numbers.of_gradient, of_momentum = numbers.of_momentum;
  if (g_stride == 1) {
    for (int64_t j = 0; j < count; ++j) l[j] = static_cast<T>(g[j]);
  } else {
    for (int64_t j = 0; j < count; ++j) l[j] = static_cast<T>(g[j * g_stride]);
  }
  int64_t found = 0;
  if (numbers.zeroes) {
    for (int64_t j = 0; j < count; ++j) {
      const bool finite = std::isfinite(l[j]);
      found += !finite;
      l[j] = finite ? l[j] : T(0);
    }
  }
  if (numbers.keeps_all) {
    std::fill_n(l, count, T(0));
    return found;
  }
  for (int64_t j = 0; j < count; ++j) {
    const T gradient = factor * l[j];
    m[j] = rounded<TM>(accumulated(least, keep, static_cast<T>(m[j]), gradient));
    const T momentum = static_cast<T>(m[j]);
    l[j] = of_gradient == 0 ? of_momentum * momentum : of_gradient * gradient + of_momentum * momentum;
  }
  return found;
}

template <class T, class TL>
void write(TL* l, const T* entries, int64_t count) {
  with_wide_vectors([=]() __attribute__((always_inline)) {
    for (int64_t j = 0; j < count; ++j) l[j] = rounded<TL>(entries[j]);
  });
}

// Some rows of one matrix, where those of M are contiguous.
template <class T, class TM, class TG>
int64_t look_ahead_rows(const Matrices& L, const Matrices& M, const Matrices& G, int64_t index, int64_t first,
                        int64_t rows, const Numbers<T>& numbers) {
  TurnedBlock<T> block;
  int64_t found = 0;
  const auto run = [&](T* l, int64_t row, int64_t col, int64_t count) {
    TM* m = M.matrix<TM>(index) + row * M.row_stride + col;
    const TG* g = G.matrix<const TG>(index) + row * G.row_stride + col * G.col_stride;
    found += with_wide_vectors([&]() __attribute__((always_inline)) {
      return step_entries(l, m, g, G.col_stride, count, numbers);
    });
  };
  TORCHDION_DISPATCH_FLOATING(L.dtype, "torchdion::look_ahead_", [&] {
    if (L.col_stride == 1) {
      for (int64_t row = first; row < first + rows; ++row) {
        for (int64_t col = 0; col < M.cols; col += block.kCols) {
          const int64_t width = std::min(block.kCols, M.cols - col);
          run(block.row(0), row, col, width);
          write(L.matrix<scalar_t>(index) + row * L.row_stride + col, block.row(0), width);
        }
      }
    } else {
      for_each_block<T>(first, rows, M.cols, [&](int64_t row, int64_t col, int64_t height, int64_t width) {
        for (int64_t i = 0; i < height; ++i) run(block.row(i), row + i, col, width);
        block.template store<scalar_t>(L, index, row, col, height, width);
      });
    }
  });
  return found;
}

}  // namespace

at::Tensor Operations::look_ahead_(const Matrices& L, const Matrices& M, const Matrices& G, const GradientRule& rule,
                                   const LookAheadFactors& ahead, bool sums_squares) {
  if (!M.row_major()) return look_ahead_(L.t(), M.t(), G.t(), rule, ahead, sums_squares);
  if (rule.frozen.all()) {
    clear_(L, rule.frozen);
    return {};
  }
  std::atomic<int64_t> total{0};
  TORCHDION_DISPATCH_FLOATING(M.dtype, "torchdion::look_ahead_", [&] {
    using momentum_t = scalar_t;
    TORCHDION_DISPATCH_FLOATING(G.dtype, "torchdion::look_ahead_", [&] {
      using T = Wider<momentum_t, scalar_t>;
      parallel_rows(M, [&](int64_t index, int64_t first, int64_t rows) {
        const Numbers<T> numbers{static_cast<T>(rule.keep),      static_cast<T>(rule.total_factor()),
                                 static_cast<T>(ahead.gradient), static_cast<T>(ahead.momentum),
                                 rule.zeroed != nullptr,         rule.frozen.has(index)};
        total += look_ahead_rows<T, momentum_t, scalar_t>(L, M, G, index, first, rows, numbers);
      });
    });
  });
  if (rule.zeroed) *rule.zeroed += total;
  return {};
}

}  // namespace torchdion::linalg::cpu
