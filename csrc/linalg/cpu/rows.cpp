#include "linalg/rows.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "linalg/cpu/convert.h"
#include "linalg/cpu/operations.h"
#include "linalg/cpu/parallel_rows.h"
#include "linalg/cpu/turned_block.h"

namespace torchdion::linalg::cpu {

namespace {

int64_t grain_of(const Matrices& A) { return kElementsPerThread / std::max<int64_t>(1, A.cols) + 1; }

// Of contiguous entries: sums of every 16th entry, which a processor adds side by side.
template <RowSum kind, class S>
double sum_of(const S* entries, int64_t count) {
  constexpr int kLanes = 16;
  double lanes[kLanes] = {};
  int64_t j = 0;
  for (; j + kLanes <= count; j += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += term_of<kind>(static_cast<double>(entries[j + lane]));
  }
  for (int lane = 0; j < count; ++j, ++lane) lanes[lane] += term_of<kind>(static_cast<double>(entries[j]));
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  return lanes[0];
}

// Of rows whose entries lie apart: column after column, with the rows side by side.
template <RowSum kind, class S>
void add_columns(double* sums, const S* first, int64_t rows, const Matrices& A) {
  for (int64_t j = 0; j < A.cols; ++j) {
    const S* column = first + j * A.col_stride;
    for (int64_t i = 0; i < rows; ++i) sums[i] += term_of<kind>(static_cast<double>(column[i * A.row_stride]));
  }
}

template <RowSum kind>
at::Tensor sums_of_rows(const Matrices& A) {
  const at::Tensor sums = at::zeros({A.count(), A.rows}, at::kDouble);
  double* out = sums.mutable_data_ptr<double>();
  TORCHDION_DISPATCH_FLOATING(A.dtype, "torchdion::row_sums", [&] {
    parallel_rows(A, [&](int64_t index, int64_t first, int64_t rows) {
      const scalar_t* entries = A.matrix<const scalar_t>(index) + first * A.row_stride;
      double* of_rows = out + index * A.rows + first;
      if (!A.row_major()) return add_columns<kind>(of_rows, entries, rows, A);
      for (int64_t i = 0; i < rows; ++i) of_rows[i] = sum_of<kind>(entries + i * A.row_stride, A.cols);
    });
  });
  return sums;
}

// Row i of A ← row source[i] of B, of one matrix and some rows.
template <class TA, class TB>
void take(const Matrices& A, const Matrices& B, int64_t index, const int32_t* source, int64_t first, int64_t rows) {
  for (int64_t i = first; i < first + rows; ++i) {
    TA* a = A.matrix<TA>(index) + i * A.row_stride;
    if (source[i] < 0) {
      std::fill_n(a, A.cols, TA());
      continue;
    }
    const TB* b = B.matrix<const TB>(index) + source[i] * B.row_stride;
    for (int64_t j = 0; j < A.cols; ++j) a[j] = rounded<TA>(static_cast<Wider<TA, TB>>(b[j]));
  }
}

// The same where rows of B lie across its memory: a block at a time, whose rows are those of A.
template <class TA, class TB>
void take_across(const Matrices& A, const Matrices& B, int64_t index, const int32_t* source, int64_t first,
                 int64_t rows) {
  using T = Wider<TA, TB>;
  TurnedBlock<T> block;
  for_each_block<T>(first, rows, A.cols, [&](int64_t row, int64_t col, int64_t height, int64_t width) {
    block.template load_rows<TB>(B, index, source + row, col, height, width);
    for (int64_t i = 0; i < height; ++i) {
      TA* a = A.matrix<TA>(index) + (row + i) * A.row_stride + col;
      for (int64_t j = 0; j < width; ++j) a[j] = rounded<TA>(block.row(i)[j]);
    }
  });
}

// The same where rows of A lie across its memory, as those of B do: of each their entries from `first` on.
template <class TA, class TB>
void take_entries(const Matrices& A, const Matrices& B, int64_t index, const int32_t* source, int64_t first,
                  int64_t entries) {
  for (int64_t e = first; e < first + entries; ++e) {
    TA* a = A.matrix<TA>(index) + e * A.col_stride;
    const TB* b = B.matrix<const TB>(index) + e * B.col_stride;
    for (int64_t j = 0; j < A.rows; ++j) {
      const Wider<TA, TB> entry = source[j] < 0 ? 0 : static_cast<Wider<TA, TB>>(b[source[j] * B.row_stride]);
      a[j * A.row_stride] = rounded<TA>(entry);
    }
  }
}

template <class S>
void scale(S& entry, double factor) {
  using T = at::opmath_type<S>;
  entry = rounded<S>(static_cast<T>(factor) * static_cast<T>(entry));
}

}  // namespace

at::Tensor Operations::row_sums(const Matrices& A, RowSum kind) {
  return kind == RowSum::magnitudes ? sums_of_rows<RowSum::magnitudes>(A) : sums_of_rows<RowSum::squares>(A);
}

at::Tensor Operations::accumulate_row_sums_(const Matrices& M, const Matrices& G, const GradientRule& rule) {
  accumulate_(M, G, rule);
  return row_sums(M, RowSum::magnitudes);
}

void Operations::take_rows_(const Matrices& A, const Matrices& B, const at::Tensor& rows, const RowDecay& decay) {
  const int32_t* numbers = rows.const_data_ptr<int32_t>();
  const bool across = !A.row_major();
  TORCHDION_DISPATCH_FLOATING(A.dtype, "torchdion::take_rows_", [&] {
    using target_t = scalar_t;
    TORCHDION_DISPATCH_FLOATING(B.dtype, "torchdion::take_rows_", [&] {
      parallel_rows(A.count(), across ? A.cols : A.rows, grain_of(A), [&](int64_t index, int64_t first, int64_t many) {
        const int32_t* of_matrix = numbers + index * A.rows;
        if (across) {
          take_entries<target_t, scalar_t>(A, B, index, of_matrix, first, many);
        } else if (B.row_major()) {
          take<target_t, scalar_t>(A, B, index, of_matrix, first, many);
        } else {
          take_across<target_t, scalar_t>(A, B, index, of_matrix, first, many);
        }
      });
    });
  });
  if (decay.factor != 1) decay_rows_(B, rows, decay);
}

void Operations::decay_rows_(const Matrices& B, const at::Tensor& rows, const RowDecay& decay) {
  const int32_t* numbers = rows.const_data_ptr<int32_t>();
  const int64_t taken = rows.size(1);
  const bool across = !B.row_major();
  TORCHDION_DISPATCH_FLOATING(B.dtype, "torchdion::decay_rows_", [&] {
    parallel_rows(B.count(), across ? B.cols : taken, grain_of(B), [&](int64_t index, int64_t first, int64_t many) {
      if (decay.frozen.has(index)) return;
      const int32_t* of_matrix = numbers + index * taken;
      const auto scale_entry = [&](int64_t row, int64_t col) {
        scale(B.matrix<scalar_t>(index)[row * B.row_stride + col * B.col_stride], decay.factor);
      };
      for (int64_t i = first; i < first + many; ++i) {
        if (across) {
          for (int64_t j = 0; j < taken; ++j) {
            if (of_matrix[j] >= 0) scale_entry(of_matrix[j], i);
          }
        } else if (of_matrix[i] >= 0) {
          for (int64_t j = 0; j < B.cols; ++j) scale_entry(of_matrix[i], j);
        }
      }
    });
  });
}

RowFactors Operations::row_factors_(const at::Tensor& squares, const Matrices& v, const at::Tensor& source,
                                    const VarianceRule& rule) {
  const at::Tensor old_v = at::empty({v.count(), v.rows}, at::kDouble);
  copy_(Matrices(old_v.unsqueeze(2)), v, 1, {});
  at::Tensor of_rows = squares, chosen;
  if (source.defined()) {
    chosen = source.ge(0);
    of_rows = at::where(chosen, squares.gather(1, source.clamp_min(0).to(at::kLong)), 0.);
  }
  at::Tensor new_v = old_v * rule.beta2 + of_rows * ((1 - rule.beta2) / static_cast<double>(rule.n));
  at::Tensor factors = (new_v.sqrt() + VarianceRule::kEpsilon).reciprocal();
  if (chosen.defined()) {
    new_v = at::where(chosen, new_v, old_v);
    factors = factors * chosen;
  }
  copy_(v, Matrices(new_v.unsqueeze(2)), 1, rule.frozen);
  return {factors, at::stack({of_rows.sum(1), (of_rows * factors.square()).sum(1)}, 1)};
}

at::Tensor Operations::keep_norms(const RowFactors& rows, at::ScalarType dtype) {
  const at::Tensor after = rows.norms.select(1, 1);
  const at::Tensor scale = (rows.norms.select(1, 0) / after).sqrt().masked_fill(after.eq(0), 0);
  return (rows.factors * scale.unsqueeze(1)).to(dtype);
}

}  // namespace torchdion::linalg::cpu
