#include "linalg/axpby.h"

#include <ATen/ops/empty.h>

#include <vector>

#include "linalg/cpu/convert.h"
#include "linalg/cpu/operations.h"
#include "linalg/cpu/parallel_rows.h"
#include "linalg/cpu/turned_block.h"

namespace torchdion::linalg::cpu {

namespace {

template <class TX, class TU, class T>
void axpby_row(TX* x, const TU* u, int64_t count, T update, T keep) {
  for (int64_t j = 0; j < count; ++j) {
    x[j] = rounded<TX>(keep * static_cast<T>(x[j]) + update * static_cast<T>(u[j]));
  }
}

// What all entries have in common.
template <class T>
struct Move {
  T update, keep;
  DirectionRule rule;

  Move(const at::Tensor& factors, const DirectionRule& direction)
      : update(factors.const_data_ptr<T>()[0]), keep(factors.const_data_ptr<T>()[1]), rule(direction) {}

  // Some entries of a row, with u multiplied by `factor`.
  template <class TX, class TU>
  void row(TX* x, const TU* u, int64_t count, T factor = 1) const {
    if (rule.is_linear()) return axpby_row(x, u, count, update * factor, keep);
    for (int64_t j = 0; j < count; ++j) {
      x[j] = rounded<TX>(moved(static_cast<T>(x[j]), factor * static_cast<T>(u[j]), update, keep, rule));
    }
  }

  // The same where u is zero.
  template <class TX>
  void decay(TX* x, int64_t count) const {
    if (rule.decay != Decay::all || keep == 1) return;
    for (int64_t j = 0; j < count; ++j) x[j] = rounded<TX>(keep * static_cast<T>(x[j]));
  }
};

// Which row of U goes to each of X and by which factor.
template <class T>
struct RowsOf {
  const int32_t* source;  // or null
  const T* factor;        // or null
  T of_matrix;            // where that is null

  RowsOf(const RowRule& rows, const at::Tensor& scales, int64_t index, int64_t count)
      : source(rows.source.defined() ? rows.source.const_data_ptr<int32_t>() + index * count : nullptr),
        factor(rows.factor.defined() ? rows.factor.const_data_ptr<T>() + index * count : nullptr),
        of_matrix(scales.defined() ? scales.const_data_ptr<T>()[index] : T(1)) {}

  int64_t of(int64_t row) const { return source ? source[row] : row; }
  T scale(int64_t row) const { return factor ? factor[row] : of_matrix; }
};

// Rows of X, which are contiguous.
template <class TX, class TU, class T>
void move_rows(const Matrices& X, const Matrices& U, int64_t index, int64_t first, int64_t count, const Move<T>& move,
               const RowsOf<T>& rows) {
  const auto x = [&](int64_t row) { return X.matrix<TX>(index) + row * X.row_stride; };
  if (!rows.source) {
    for_each_run_of_rows<T, TU>(U, index, first, count, [&](int64_t row, int64_t col, int64_t many, auto* u) {
      move.row(x(row) + col, u, many, rows.scale(row));
    });
    return;
  }
  std::vector<TU> apart(U.row_major() ? 0 : X.cols);
  for (int64_t row = first; row < first + count; ++row) {
    if (rows.of(row) < 0) {
      move.decay(x(row), X.cols);
      continue;
    }
    const TU* u = U.matrix<const TU>(index) + rows.of(row) * U.row_stride;
    if (!U.row_major()) {
      for (int64_t j = 0; j < X.cols; ++j) apart[j] = u[j * U.col_stride];
      u = apart.data();
    }
    move.row(x(row), u, X.cols, rows.scale(row));
  }
}

// The transposes of X and U, of which rows of X are contiguous: their columns are what goes together. Each row of U is
// put together as X has it, zeros where no column of U goes.
template <class TX, class TU, class T>
void move_columns(const Matrices& X, const Matrices& U, int64_t index, int64_t first, int64_t count,
                  const Move<T>& move, const RowsOf<T>& rows) {
  std::vector<int64_t> targets(U.cols, -1);  // of columns of U
  for (int64_t j = 0; j < X.cols; ++j) {
    if (rows.of(j) >= 0) targets[rows.of(j)] = j;
  }
  constexpr int64_t kAtOnce = TurnedBlock<T>::kRows;
  std::vector<T> whole(kAtOnce * X.cols, T(0));
  for (int64_t row = first; row < first + count; row += kAtOnce) {
    const int64_t height = std::min(kAtOnce, first + count - row);
    for_each_run_of_rows<T, TU>(U, index, row, height, [&](int64_t of_U, int64_t col, int64_t many, auto* u) {
      T* target = whole.data() + (of_U - row) * X.cols;
      for (int64_t k = 0; k < many; ++k) {
        const int64_t j = targets[col + k];
        if (j >= 0) target[j] = rows.scale(j) * static_cast<T>(u[k]);
      }
    });
    for (int64_t i = 0; i < height; ++i) {
      move.row(X.matrix<TX>(index) + (row + i) * X.row_stride, whole.data() + i * X.cols, X.cols);
    }
  }
}

}  // namespace

at::Tensor Operations::device_factors(const FactorRule& rule, at::TensorOptions options) {
  const UpdateFactors factors = update_factors(rule.shape_factor, rule.rates_on_host(), rule.frozen.all());
  const at::Tensor all = at::empty({2}, options);
  all[0].fill_(factors.update);
  all[1].fill_(factors.keep);
  return all;
}

void Operations::axpby_(const Matrices& X, const Matrices& U, const at::Tensor& factors, const DirectionRule& rule,
                        const RowRule& rows, const at::Tensor& scales) {
  const bool across = !X.row_major(), has_rows = rows.source.defined() || rows.factor.defined();
  const Matrices x = across ? X.t() : X, u = across ? U.t() : U;
  TORCHDION_DISPATCH_FLOATING(X.dtype, "torchdion::axpby_", [&] {
    using weight_t = scalar_t;
    TORCHDION_DISPATCH_FLOATING(U.dtype, "torchdion::axpby_", [&] {
      using T = Wider<weight_t, scalar_t>;
      const Move<T> move(factors, rule);
      parallel_rows(x, [&](int64_t index, int64_t first, int64_t count) {
        if (rule.frozen.has(index)) return;
        const RowsOf<T> of_matrix(rows, scales, index, X.rows);
        if (across && has_rows) {
          move_columns<weight_t, scalar_t>(x, u, index, first, count, move, of_matrix);
        } else {
          move_rows<weight_t, scalar_t>(x, u, index, first, count, move, of_matrix);
        }
      });
    });
  });
}

}  // namespace torchdion::linalg::cpu
