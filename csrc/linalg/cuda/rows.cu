#include "linalg/cuda/programs/rows.h"

#include "linalg/cuda/kernels.h"

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

void take_rows(MatrixList A, MatrixList B, int64_t count, int64_t rows, int64_t cols, const int32_t* source,
               Stream stream) {
  const bool across = B.strides.col != 1;
  const auto turned = [](Strides strides) { return Strides{strides.col, strides.row}; };
  const Pairs pairs =
      across ? Pairs{cols, rows, turned(A.strides), turned(B.strides)} : Pairs{rows, cols, A.strides, B.strides};
  dispatch(A.storage, [&](auto a) {
    dispatch(B.storage, [&](auto b) {
      launch(TakeRows<decltype(a), decltype(b)>{A.data, B.data, pairs, {source, rows, across}}, count * pairs.chunks(),
             0, stream);
    });
  });
}

void scale_rows(MatrixList A, int64_t count, int64_t rows, int64_t cols, const int32_t* source, bool across,
                double factor, const float* left_out, const float* unchanged, Stream stream) {
  const Pairs pairs{rows, cols, A.strides, A.strides};
  const RowNumbers numbers{source, across ? cols : rows, across};
  dispatch(A.storage, [&](auto a) {
    launch(ScaleRows<decltype(a)>{A.data, pairs, numbers, factor, left_out, unchanged}, count * pairs.chunks(), 0,
           stream);
  });
}

void axpby_rows(MatrixList X, MatrixList U, int64_t count, int64_t rows, int64_t cols, const void* factors,
                const float* unchanged, const DirectionRule& rule, const int32_t* source, const void* scale,
                bool across, int64_t entries_of_U, Stream stream) {
  const Pairs pairs{rows, cols, X.strides, U.strides};
  const RowNumbers numbers{source, across ? cols : rows, across};
  dispatch(X.storage, [&](auto x) {
    dispatch(U.storage, [&](auto u) {
      launch(AxpbyRows<decltype(x), decltype(u)>{X.data, U.data, pairs, factors, unchanged, rule, numbers, scale,
                                                 entries_of_U},
             count * pairs.chunks(), 0, stream);
    });
  });
}

}  // namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE::kernels
