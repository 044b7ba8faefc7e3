// The kernels of factors: their columns, sketches and Cholesky factors.
#include "linalg/cuda/kernels.h"
#include "linalg/cuda/programs/columns.h"
#include "linalg/cuda/programs/factor_gram.h"
#include "linalg/cuda/programs/residual_scales.h"
#include "linalg/cuda/programs/sketch.h"

namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE::kernels {

void column_square_sums(MatrixList R, int64_t count, int64_t rows, int64_t cols, double* squares, Stream stream) {
  const Columns columns{rows, cols};
  dispatch(R.storage, [&](auto r) {
    using Program = ColumnSums<decltype(r), RowSum::squares>;
    launch(Program{R.data, R.strides.row, columns, squares}, columns.blocks(count), Program::shared_bytes, stream);
  });
}

void column_normalize(MatrixList Q, MatrixList R, int64_t count, int64_t rows, int64_t cols, const double* squares,
                      const ColumnOutputs& outputs, Stream stream) {
  const Columns columns{rows, cols};
  const auto run = [&](auto q, auto r, auto u) {
    using SR = decltype(r);
    using SU = decltype(u);
    using Program = ColumnNormalize<decltype(q), SR, SU>;
    launch(Program{Q.data, R.data, Q.strides.row, R.strides.row, columns, squares, static_cast<SU*>(outputs.update),
                   static_cast<BFloat16*>(outputs.copy_of_R), static_cast<const Wider<SR, SR>*>(outputs.scales)},
           columns.blocks(count), Program::shared_bytes, stream);
  };
  dispatch(Q.storage, [&](auto q) {
    dispatch(R.storage, [&](auto r) {
      if (outputs.update && !outputs.rounds_update) {
        run(q, r, r);
      } else {
        run(q, r, BFloat16());
      }
    });
  });
}

template <class T>
void residual_scales(T* scales, const Lengths& lengths, int64_t count, double least, Stream stream) {
  const ResidualScales<T> program{lengths.squares,          lengths.scales, lengths.cols,
                                  lengths.scales_of_matrix, least,          scales};
  launch(program, count, ResidualScales<T>::shared_bytes, stream);
}
template void residual_scales(float*, const Lengths&, int64_t, double, Stream);
template void residual_scales(double*, const Lengths&, int64_t, double, Stream);

void scale_columns(void* P, Storage storage, int64_t count, int64_t rows, int64_t cols, int* exponents, bool rounds,
                   Stream stream) {
  const Columns columns{rows, cols};
  const auto run = [&](auto program) {
    launch(program, columns.blocks(count), decltype(program)::shared_bytes, stream);
  };
  if (storage == Storage::bfloat16) {
    run(ScaleColumns<BFloat16, 7>{static_cast<BFloat16*>(P), columns, exponents});
  } else if (!rounds) {
    run(ScaleColumns<float, 23>{static_cast<float*>(P), columns, exponents});
  } else {
    run(ScaleColumns<float, 10>{static_cast<float*>(P), columns, exponents});
  }
}

void sketch(void* out, Storage storage, SketchPlace place, double standard_deviation, Stream stream) {
  dispatch(storage, [&](auto s) {
    using S = decltype(s);
    const Sketch<S> program{static_cast<S*>(out), place.count, place.rows,   place.cols,         place.row_offset,
                            place.col_offset,     place.seed,  place.stream, place.steps_before, standard_deviation};
    launch(program, divide_up(place.count * place.rows * program.blocks_of_row(), Sketch<S>::threads), 0, stream);
  });
}

template <class T, class F>
void factor_gram(const FactorGram<T, F>& program, int64_t count, Stream stream) {
  launch_clusters(program, count, FactorGram<T, F>::shared_bytes, stream);
}

template void factor_gram(const FactorGram<float, BFloat16>&, int64_t, Stream);
template void factor_gram(const FactorGram<float, float>&, int64_t, Stream);
template void factor_gram(const FactorGram<double, float>&, int64_t, Stream);
template void factor_gram(const FactorGram<double, double>&, int64_t, Stream);

}  // namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE::kernels
