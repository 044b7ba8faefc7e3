#include "linalg/look_ahead.h"

#include <array>
#include <atomic>
#include <cmath>

#include "linalg/cpu/convert.h"
#include "linalg/cpu/least_momentum.h"
#include "linalg/cpu/operations.h"
#include "linalg/cpu/parallel_rows.h"

namespace torchdion::linalg::cpu {

namespace {

constexpr int64_t kRun = 512;  // entries of a row that are computed before L is written: they stay in the cache

template <class T>
using Entries = std::array<T, kRun>;

template <class T, class TG>
void read(Entries<T>& entries, const TG* g, int64_t stride, int64_t count) {
  if (stride == 1) {
    for (int64_t j = 0; j < count; ++j) entries[j] = static_cast<T>(g[j]);
  } else {
    for (int64_t j = 0; j < count; ++j) entries[j] = static_cast<T>(g[j * stride]);
  }
}

// How many of these were not finite, and are zero now.
template <class T>
int64_t zero_nonfinite(Entries<T>& entries, int64_t count) {
  int64_t found = 0;
  for (int64_t j = 0; j < count; ++j) {
    const bool finite = std::isfinite(entries[j]);
    found += !finite;
    entries[j] = finite ? entries[j] : T(0);
  }
  return found;
}

// m ← keep m + factor g;  g ← factor g + ahead m, or m
template <class T, class TM>
void step(TM* m, Entries<T>& g, int64_t count, T keep, T factor, T ahead) {
  const T least = least_momentum<TM>();
  for (int64_t j = 0; j < count; ++j) {
    const T gradient = factor * g[j];
    m[j] = rounded<TM>(zero_below(least, keep * static_cast<T>(m[j]) + gradient));
    const T momentum = static_cast<T>(m[j]);
    g[j] = ahead == 0 ? momentum : gradient + ahead * momentum;
  }
}

template <class T>
void write(const Matrices& L, int64_t index, int64_t row, int64_t col, const Entries<T>& entries, int64_t count) {
  TORCHDION_DISPATCH_FLOATING(L.dtype, "torchdion::look_ahead_", [&] {
    scalar_t* l = L.matrix<scalar_t>(index) + row * L.row_stride + col * L.col_stride;
    if (L.col_stride == 1) {
      for (int64_t j = 0; j < count; ++j) l[j] = rounded<scalar_t>(entries[j]);
    } else {
      for (int64_t j = 0; j < count; ++j) l[j * L.col_stride] = rounded<scalar_t>(entries[j]);
    }
  });
}

// Some rows of one matrix, where those of M are contiguous; returns how many entries of G were not finite, if they
// count as zero.
template <class TM, class TG>
int64_t look_ahead_rows(const Matrices& L, const Matrices& M, const Matrices& G, int64_t index, int64_t first,
                        int64_t rows, const GradientRule& rule, double ahead) {
  using T = Wider<TM, TG>;
  const T keep = static_cast<T>(rule.keep), factor = static_cast<T>(rule.total_factor());
  const int64_t widest_stride = std::max(L.col_stride, G.col_stride);
  Entries<T> entries;
  int64_t found = 0;
  for_each_tile(first, rows, M.cols, widest_stride, [&](int64_t row, int64_t begin, int64_t end) {
    for (int64_t col = begin; col < end; col += kRun) {
      const int64_t count = std::min(kRun, end - col);
      read(entries, G.matrix<const TG>(index) + row * G.row_stride + col * G.col_stride, G.col_stride, count);
      if (rule.zeroed) found += zero_nonfinite(entries, count);
      if (rule.keeps_all(index)) {
        entries.fill(0);
      } else {
        step(M.matrix<TM>(index) + row * M.row_stride + col, entries, count, keep, factor, static_cast<T>(ahead));
      }
      write(L, index, row, col, entries, count);
    }
  });
  return found;
}

}  // namespace

void Operations::look_ahead_(const Matrices& L, const Matrices& M, const Matrices& G, const GradientRule& rule,
                             double ahead) {
  if (!M.row_major()) return look_ahead_(L.t(), M.t(), G.t(), rule, ahead);
  if (rule.leaves_out()) return clear_(L, rule.left_out, nullptr);
  const int64_t grain = kElementsPerThread / std::max<int64_t>(1, M.cols) + 1;
  std::atomic<int64_t> total{0};
  TORCHDION_DISPATCH_FLOATING(M.dtype, "torchdion::look_ahead_", [&] {
    using momentum_t = scalar_t;
    TORCHDION_DISPATCH_FLOATING(G.dtype, "torchdion::look_ahead_", [&] {
      parallel_rows(M.count(), M.rows, grain, [&](int64_t index, int64_t first, int64_t rows) {
        total += look_ahead_rows<momentum_t, scalar_t>(L, M, G, index, first, rows, rule, ahead);
      });
    });
  });
  if (rule.zeroed) *rule.zeroed += total;
}

}  // namespace torchdion::linalg::cpu
