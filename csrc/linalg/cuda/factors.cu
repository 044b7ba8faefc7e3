// The kernels of factors: their columns, sketches and Cholesky factors.
#include "linalg/cuda/kernels.h"
#include "linalg/cuda/programs/cholesky.h"
#include "linalg/cuda/programs/columns.h"
#include "linalg/cuda/programs/sketch.h"

namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE::kernels {

void column_square_sums(MatrixList R, int64_t count, int64_t rows, int64_t cols, double* squares, Stream stream) {
  const Columns columns{rows, cols};
  dispatch(R.storage, [&](auto r) {
    using Program = ColumnSquareSums<decltype(r)>;
    launch(Program{R.data, R.strides.row, columns, squares}, columns.blocks(count), Program::shared_bytes, stream);
  });
}

void column_normalize(MatrixList Q, MatrixList R, int64_t count, int64_t rows, int64_t cols, const double* squares,
                      Stream stream) {
  const Columns columns{rows, cols};
  dispatch(Q.storage, [&](auto q) {
    dispatch(R.storage, [&](auto r) {
      using Program = ColumnNormalize<decltype(q), decltype(r)>;
      launch(Program{Q.data, R.data, Q.strides.row, R.strides.row, columns, squares}, columns.blocks(count),
             Program::shared_bytes, stream);
    });
  });
}

void sketch(void* out, Storage storage, SketchPlace place, double standard_deviation, Stream stream) {
  dispatch(storage, [&](auto s) {
    using S = decltype(s);
    const Sketch<S> program{static_cast<S*>(out), place.rows,   place.cols, place.row_offset,  place.col_offset,
                            place.seed,           place.stream, place.steps_before, standard_deviation};
    launch(program, divide_up(place.rows * program.blocks_of_row(), Sketch<S>::threads), 0, stream);
  });
}

template <class T>
void equilibrate(const Equilibration<T>& equilibration, T* H, int64_t count, Stream stream) {
  launch(equilibration, count, Equilibration<T>::shared_bytes, stream);
  const int64_t r = equilibration.r, numel = count * r * r;
  launch(ScaleLower<T>{H, equilibration.scale, r, numel}, divide_up(numel, ScaleLower<T>::threads), 0, stream);
}

template <class T>
void factor_diagonal(const T* H, const T* left, T* Linv, T* clear, const double* noise, double* rounding, int64_t count,
                     int64_t r, int64_t first, double least_pivot, Stream stream) {
  const FactorDiagonal<T> program{H, left, Linv, clear, noise, rounding, r, first, static_cast<T>(least_pivot)};
  launch(program, count, FactorDiagonal<T>::shared_bytes, stream);
}

template <class T, class F>
void store_factor(const T* Linv, const double* scale, F* factor, F* rest, int64_t count, int64_t r, Stream stream) {
  const StoreFactor<T, F> program{Linv, scale, factor, rest, r};
  launch(program, program.blocks(count), StoreFactor<T, F>::shared_bytes, stream);
}

template void equilibrate(const Equilibration<float>&, float*, int64_t, Stream);
template void equilibrate(const Equilibration<double>&, double*, int64_t, Stream);
template void factor_diagonal(const float*, const float*, float*, float*, const double*, double*, int64_t, int64_t,
                              int64_t, double, Stream);
template void factor_diagonal(const double*, const double*, double*, double*, const double*, double*, int64_t, int64_t,
                              int64_t, double, Stream);
template void store_factor(const float*, const double*, float*, float*, int64_t, int64_t, Stream);
template void store_factor(const double*, const double*, float*, float*, int64_t, int64_t, Stream);
template void store_factor(const double*, const double*, double*, double*, int64_t, int64_t, Stream);

}  // namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE::kernels
