// The kernels of factors: their columns, norms, sketches and Cholesky factors.
#include "linalg/cuda/kernels.h"
#include "linalg/cuda/programs/columns.h"
#include "linalg/cuda/programs/factor_gram.h"
#include "linalg/cuda/programs/frobenius.h"
#include "linalg/cuda/programs/residual_scales.h"

namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE::kernels {

void column_square_sums(MatrixList R, double* squares, Stream stream) {
  const Columns columns{R.rows, R.cols};
  dispatch(R.storage, [&](auto r) {
    using Program = ColumnSums<decltype(r), RowSum::squares>;
    launch(Program{R.data, R.strides.row, columns, squares}, columns.blocks(R.count), Program::shared_bytes, stream);
  });
}

void column_normalize(MatrixList Q, MatrixList R, const double* squares, const ColumnOutputs& outputs, Stream stream) {
  const Columns columns{R.rows, R.cols};
  const auto run = [&](auto q, auto r, auto u) {
    using SR = decltype(r);
    using SU = decltype(u);
    using Program = ColumnNormalize<decltype(q), SR, SU>;
    launch(Program{Q.data, R.data, Q.strides.row, R.strides.row, columns, squares, static_cast<SU*>(outputs.update),
                   static_cast<BFloat16*>(outputs.copy_of_R), static_cast<const Wider<SR, SR>*>(outputs.scales)},
           columns.blocks(R.count), Program::shared_bytes, stream);
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

void residual_scales(Entries scales, const double* squares, int64_t count, int64_t cols, double least, Stream stream) {
  dispatch_computed(scales.storage, [&](auto number) {
    using Program = ResidualScales<decltype(number)>;
    launch(Program{squares, cols, least, scales.as<decltype(number)>()}, count, Program::shared_bytes, stream);
  });
}

void scale_columns(Entries P, int64_t count, int64_t rows, int64_t cols, int* exponents, bool rounds, Stream stream) {
  const Columns columns{rows, cols};
  const auto run = [&](auto program) {
    launch(program, columns.blocks(count), decltype(program)::shared_bytes, stream);
  };
  if (P.storage == Storage::bfloat16) {
    run(ScaleColumns<BFloat16, 7>{P.as<BFloat16>(), columns, exponents});
  } else if (!rounds) {
    run(ScaleColumns<float, 23>{P.as<float>(), columns, exponents});
  } else {
    run(ScaleColumns<float, 10>{P.as<float>(), columns, exponents});
  }
}

void sketch(Entries out, const SketchPlace& place, double standard_deviation, Stream stream) {
  dispatch(out.storage, [&](auto entry) {
    using Program = Sketch<decltype(entry)>;
    const Program program{out.as<decltype(entry)>(), place, standard_deviation};
    launch(program, divide_up(place.count * place.rows * program.blocks_of_row(), Program::threads), 0, stream);
  });
}

void frobenius_factors(Entries X, int64_t count, int64_t numel, const double* squares, int64_t parts, double slack,
                       void* factors, Stream stream) {
  dispatch(X.storage, [&](auto entry) {
    using Program = FrobeniusFactors<decltype(entry)>;
    using T = typename Program::T;
    launch(Program{X.as<decltype(entry)>(), numel, parts, squares, static_cast<T*>(factors), slack},
           count * Program::kBlocks, Program::shared_bytes, stream);
  });
}

void add_identity(Entries B, Entries A, int64_t count, int64_t p, double a, const void* factors, int power,
                  Stream stream) {
  dispatch(A.storage, [&](auto entry) {
    using S = decltype(entry);
    using T = typename AddIdentity<S>::T;
    const AddIdentity<S> program{B.as<S>(), A.as<S>(), count * p, p, static_cast<T>(a), static_cast<const T*>(factors),
                                 power};
    launch(program, program.blocks(), 0, stream);
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
