#include "linalg/cuda/programs/rows.h"

#include "linalg/cuda/kernels.h"
#include "linalg/cuda/programs/row_factors.h"

namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE::kernels {

namespace {

template <RowSum kind>
void sum_rows(MatrixList A, int64_t count, int64_t rows, int64_t cols, double* sums, Stream stream) {
  dispatch(A.storage, [&](auto a) {
    if (A.strides.col == 1) {
      using Program = RowSums<decltype(a), kind>;
      launch(Program{A.data, A.strides.row, rows, cols, sums}, count * rows, Program::shared_bytes, stream);
    } else {
      using Program = ColumnSums<decltype(a), kind>;
      const Columns columns{cols, rows};
      launch(Program{A.data, A.strides.col, columns, sums}, columns.blocks(count), Program::shared_bytes, stream);
    }
  });
}

}  // namespace

void row_sums(MatrixList A, int64_t count, int64_t rows, int64_t cols, RowSum kind, double* sums, Stream stream) {
  if (kind == RowSum::magnitudes) {
    sum_rows<RowSum::magnitudes>(A, count, rows, cols, sums, stream);
  } else {
    sum_rows<RowSum::squares>(A, count, rows, cols, sums, stream);
  }
}

bool accumulates_row_sums(const MatrixList& M, const MatrixList& G) {
  return (M.strides.col == 1 && G.strides.col == 1) || (M.strides.row == 1 && G.strides.row == 1);
}

void accumulate_row_sums(MatrixList M, MatrixList G, int64_t count, int64_t rows, int64_t cols,
                         const GradientRule& rule, double* sums, Stream stream) {
  dispatch(M.storage, [&](auto m) {
    dispatch(G.storage, [&](auto g) {
      if (M.strides.col == 1) {
        using Program = AccumulateRows<decltype(m), decltype(g)>;
        const Lines lines{count, rows, cols};
        launch(Program{M.data, G.data, lines, M.strides.row, G.strides.row, rule, sums}, lines.blocks(),
               Program::shared_bytes, stream);
      } else {
        using Program = AccumulateColumns<decltype(m), decltype(g)>;
        const Columns columns{cols, rows};
        launch(Program{M.data, G.data, columns, M.strides.col, G.strides.col, rule, sums}, columns.blocks(count),
               Program::shared_bytes, stream);
      }
    });
  });
}

void take_rows(MatrixList A, MatrixList B, int64_t count, int64_t rows, int64_t cols, const int32_t* numbers,
               const RowDecay& decay, Stream stream) {
  const bool across = B.strides.col != 1;
  const Lines lines = across ? Lines{count, cols, rows} : Lines{count, rows, cols};
  dispatch(B.storage, [&](auto b) {
    const auto run = [&](auto a) {
      launch(TakeRows<decltype(a), decltype(b)>{A.data, B.data, lines, A.strides, B.strides, numbers, across, decay},
             lines.blocks(), 0, stream);
    };
    A.data ? dispatch(A.storage, run) : run(b);
  });
}

void row_variances(MatrixList v, int64_t count, int64_t rows, const double* squares, int64_t of_update,
                   const int32_t* source, const VarianceRule& rule, double* factors, double* norms, Stream stream) {
  dispatch(v.storage, [&](auto s) {
    using Program = RowVariances<decltype(s)>;
    launch(Program{v.data, v.strides.row, rows, of_update, squares, source, rule, factors, norms}, count,
           Program::shared_bytes, stream);
  });
}

template <class T>
void keep_norms(T* out, const double* factors, const double* norms, int64_t count, int64_t rows, Stream stream) {
  const KeepNorms<T> program{factors, norms, out, rows, count};
  launch(program, program.blocks(), 0, stream);
}
template void keep_norms(float*, const double*, const double*, int64_t, int64_t, Stream);
template void keep_norms(double*, const double*, const double*, int64_t, int64_t, Stream);

void axpby_rows(MatrixList X, MatrixList U, int64_t count, int64_t rows, int64_t cols, const void* factors,
                const DirectionRule& rule, const int32_t* source, const void* scale, bool across, int64_t entries_of_U,
                Stream stream) {
  const Lines lines{count, rows, cols};
  dispatch(X.storage, [&](auto x) {
    dispatch(U.storage, [&](auto u) {
      launch(AxpbyRows<decltype(x), decltype(u)>{X.data, U.data, lines, X.strides.row, U.strides, factors, rule, source,
                                                 scale, across, entries_of_U},
             lines.blocks(), 0, stream);
    });
  });
}

}  // namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE::kernels
