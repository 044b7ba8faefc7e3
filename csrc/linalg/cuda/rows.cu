// The kernels of rows: their sums, lists of some of them, and which are the largest.
#include "linalg/cuda/kernels.h"
#include "linalg/cuda/programs/row_factors.h"
#include "linalg/cuda/programs/rows.h"
#include "linalg/cuda/programs/top_k.h"

namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE::kernels {

namespace {

template <RowSum kind>
void sum_rows(MatrixList A, double* sums, Stream stream) {
  dispatch(A.storage, [&](auto a) {
    if (A.strides.col == 1) {
      using Program = RowSums<decltype(a), kind>;
      launch(Program{A.data, A.strides.row, A.rows, A.cols, sums}, A.count * A.rows, Program::shared_bytes, stream);
    } else {
      using Program = ColumnSums<decltype(a), kind>;
      const Columns columns{A.cols, A.rows};
      launch(Program{A.data, A.strides.col, columns, sums}, columns.blocks(A.count), Program::shared_bytes, stream);
    }
  });
}

}  // namespace

void row_sums(MatrixList A, RowSum kind, double* sums, Stream stream) {
  kind == RowSum::magnitudes ? sum_rows<RowSum::magnitudes>(A, sums, stream)
                             : sum_rows<RowSum::squares>(A, sums, stream);
}

bool accumulates_row_sums(const MatrixList& M, const MatrixList& G) {
  return (M.strides.col == 1 && G.strides.col == 1) || (M.strides.row == 1 && G.strides.row == 1);
}

void accumulate_row_sums(MatrixList M, MatrixList G, const GradientRule& rule, double* sums, Stream stream) {
  dispatch(M.storage, [&](auto m) {
    dispatch(G.storage, [&](auto g) {
      if (M.strides.col == 1) {
        using Program = AccumulateRows<decltype(m), decltype(g)>;
        const Lines lines{M.count, M.rows, M.cols};
        launch(Program{M.data, G.data, lines, M.strides.row, G.strides.row, rule, sums}, lines.blocks(),
               Program::shared_bytes, stream);
      } else {
        using Program = AccumulateColumns<decltype(m), decltype(g)>;
        const Columns columns{M.cols, M.rows};
        launch(Program{M.data, G.data, columns, M.strides.col, G.strides.col, rule, sums}, columns.blocks(M.count),
               Program::shared_bytes, stream);
      }
    });
  });
}

void take_rows(MatrixList A, MatrixList B, const int32_t* numbers, const RowDecay& decay, Stream stream) {
  const bool across = B.strides.col != 1;
  const Lines lines = across ? Lines{A.count, A.cols, A.rows} : Lines{A.count, A.rows, A.cols};
  dispatch(B.storage, [&](auto b) {
    const auto run = [&](auto a) {
      launch(TakeRows<decltype(a), decltype(b)>{A.data, B.data, lines, A.strides, B.strides, numbers, across, decay},
             lines.blocks(), 0, stream);
    };
    A.data ? dispatch(A.storage, run) : run(b);
  });
}

void row_variances(MatrixList v, const double* squares, int64_t of_update, const int32_t* source,
                   const VarianceRule& rule, double* factors, double* norms, Stream stream) {
  dispatch(v.storage, [&](auto s) {
    using Program = RowVariances<decltype(s)>;
    launch(Program{v.data, v.strides.row, v.rows, of_update, squares, source, rule, factors, norms}, v.count,
           Program::shared_bytes, stream);
  });
}

void keep_norms(Entries out, const double* factors, const double* norms, int64_t count, int64_t rows, Stream stream) {
  dispatch_computed(out.storage, [&](auto number) {
    using T = decltype(number);
    const KeepNorms<T> program{factors, norms, out.as<T>(), rows, count};
    launch(program, program.blocks(), 0, stream);
  });
}

void axpby_rows(MatrixList X, MatrixList U, const void* factors, const DirectionRule& rule, const int32_t* source,
                const void* scale, bool across, int64_t entries_of_U, Stream stream) {
  const Lines lines{X.count, X.rows, X.cols};
  dispatch(X.storage, [&](auto x) {
    dispatch(U.storage, [&](auto u) {
      launch(AxpbyRows<decltype(x), decltype(u)>{X.data, U.data, lines, X.strides.row, U.strides, factors, rule, source,
                                                 scale, across, entries_of_U},
             lines.blocks(), 0, stream);
    });
  });
}

void top_k(Entries chosen, Entries entries, int64_t count, int64_t size, int64_t k, Stream stream) {
  dispatch_computed(entries.storage, [&](auto number) {
    using T = decltype(number);
    launch(TopK<T>{entries.as<T>(), chosen.as<T>(), size, k}, count, TopK<T>::shared_bytes, stream);
  });
}

void choose_rows(int32_t* rows, int32_t* slots, const double* norms, int64_t count, int64_t size, int64_t k,
                 Stream stream) {
  launch(ChooseRows{norms, rows, slots, size, k}, count, ChooseRows::shared_bytes, stream);
}

}  // namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE::kernels
