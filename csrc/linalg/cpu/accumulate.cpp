#include "linalg/cpu/operations.h"

#include <atomic>
#include <cmath>

#include "linalg/cpu/avx512.h"
#include "linalg/cpu/convert.h"
#include "linalg/cpu/parallel_rows.h"
#include "linalg/cpu/turned_block.h"

namespace torchdion::linalg::cpu {

namespace {

// Walks along the memory of M: rows are what is contiguous there.
Matrices along_memory(const Matrices& matrices, bool transpose) { return transpose ? matrices.t() : matrices; }

// m ← keep m + alpha g, or + 0 where g is not finite and these count as zero.
template <class T, bool zeroes, class TM, class TG>
void add_row(TM* m, const TG* g, int64_t count, double keep, double alpha) {
  const T kept = static_cast<T>(keep), scale = static_cast<T>(alpha), least = least_momentum<TM>();
  with_wide_vectors([=]() __attribute__((always_inline)) {
    for (int64_t j = 0; j < count; ++j) {
      const T entry = static_cast<T>(g[j]), added = !zeroes || std::isfinite(entry) ? scale * entry : T(0);
      m[j] = rounded<TM>(accumulated(least, kept, static_cast<T>(m[j]), added));
    }
  });
}

template <class TG>
int64_t nonfinite_in_row(const TG* g, int64_t count) {
  int64_t found = 0;
  for (int64_t j = 0; j < count; ++j) found += !std::isfinite(static_cast<at::opmath_type<TG>>(g[j]));
  return found;
}

}  // namespace

void Operations::accumulate_(const Matrices& M, const Matrices& G, const GradientRule& rule) {
  if (rule.frozen.all()) return;
  const double alpha = rule.total_factor();
  const Matrices m = along_memory(M, !M.row_major()), g = along_memory(G, !M.row_major());
  std::atomic<int64_t> total{0};
  TORCHDION_DISPATCH_FLOATING(m.dtype, "torchdion::accumulate_", [&] {
    using momentum_t = scalar_t;
    TORCHDION_DISPATCH_FLOATING(g.dtype, "torchdion::accumulate_", [&] {
      parallel_rows(m, [&](int64_t index, int64_t first, int64_t count) {
        using T = Wider<momentum_t, scalar_t>;
        int64_t found = 0;
        for_each_run_of_rows<T, scalar_t>(g, index, first, count,
                                          [&](int64_t row, int64_t col, int64_t many, auto* source) {
                                            momentum_t* target = m.matrix<momentum_t>(index) + row * m.row_stride + col;
                                            if (rule.zeroed) found += nonfinite_in_row(source, many);
                                            if (rule.frozen.has(index)) return;
                                            if (rule.zeroed) {
                                              add_row<T, true>(target, source, many, rule.keep, alpha);
                                            } else {
                                              add_row<T, false>(target, source, many, rule.keep, alpha);
                                            }
                                          });
        total += found;
      });
    });
  });
  if (rule.zeroed) *rule.zeroed += total;
}

void Operations::count_nonfinite(const Matrices& G, int64_t* found_in_all) {
  const Matrices g = along_memory(G, !G.row_major());
  std::atomic<int64_t> total{0};
  TORCHDION_DISPATCH_FLOATING(g.dtype, "torchdion::count_nonfinite", [&] {
    parallel_rows(g, [&](int64_t index, int64_t first, int64_t count) {
      int64_t found = 0;
      using T = at::opmath_type<scalar_t>;
      for_each_run_of_rows<T, scalar_t>(g, index, first, count, [&](int64_t, int64_t, int64_t many, auto* source) {
        found += nonfinite_in_row(source, many);
      });
      total += found;
    });
  });
  *found_in_all += total;
}

}  // namespace torchdion::linalg::cpu
