#include "linalg/cuda/kernels.h"
#include "linalg/cuda/programs/look_ahead.h"
#include "linalg/cuda/programs/upload.h"

namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE::kernels {

namespace {

template <int Words>
void upload_at_once(uint64_t* target, const uint64_t* words, int64_t count, Stream stream) {
  Upload<Words> program;
  program.target = target;
  program.count = count;
  for (int64_t i = 0; i < count; ++i) program.words[i] = words[i];
  launch(program, 1, 0, stream);
}

}  // namespace

void upload(uint64_t* target, const uint64_t* words, int64_t count, Stream stream) {
  for (; count > kManyWords; target += kManyWords, words += kManyWords, count -= kManyWords) {
    upload_at_once<kManyWords>(target, words, kManyWords, stream);
  }
  if (count > kFewWords) {
    upload_at_once<kManyWords>(target, words, count, stream);
  } else {
    upload_at_once<kFewWords>(target, words, count, stream);
  }
}

void accumulate(MatrixList M, MatrixList G, int64_t count, int64_t rows, int64_t cols, const GradientRule& rule,
                Stream stream) {
  const Pairs pairs{rows, cols, M.strides, G.strides};
  dispatch(M.storage, [&](auto m) {
    dispatch(G.storage, [&](auto g) {
      launch(Accumulate<decltype(m), decltype(g)>{M.data, G.data, pairs, rule}, count * pairs.chunks(), 0, stream);
    });
  });
}

int64_t parts_of(int64_t rows, int64_t cols) { return Pairs{rows, cols, {}, {}}.chunks(); }

void look_ahead(MatrixList L, MatrixList M, MatrixList G, int64_t count, int64_t rows, int64_t cols,
                const GradientRule& rule, const LookAheadFactors& ahead, double* squares, Stream stream) {
  const Pairs pairs{rows, cols, M.strides, G.strides};
  dispatch(M.storage, [&](auto m) {
    dispatch(G.storage, [&](auto g) {
      using Program = LookAhead<decltype(m), decltype(g)>;
      launch(Program{L.data, M.data, G.data, pairs, L.storage, L.strides, rule, ahead, squares}, count * pairs.chunks(),
             Program::shared_bytes, stream);
    });
  });
}

void axpby(MatrixList X, MatrixList U, int64_t count, int64_t rows, int64_t cols, const void* factors,
           const DirectionRule& rule, const void* scales, Stream stream) {
  const Pairs pairs{rows, cols, X.strides, U.strides};
  dispatch(X.storage, [&](auto x) {
    dispatch(U.storage, [&](auto u) {
      launch(Axpby<decltype(x), decltype(u)>{X.data, U.data, pairs, factors, rule, scales}, count * pairs.chunks(), 0,
             stream);
    });
  });
}

void take_signs(MatrixList U, MatrixList L, int64_t count, int64_t rows, int64_t cols, double feedback,
                FloorOfSigns floor, Stream stream) {
  const Pairs pairs{rows, cols, L.strides, U.strides};
  const auto run = [&](auto u) {
    dispatch(L.storage, [&](auto l) {
      launch(TakeSigns<decltype(l), decltype(u)>{L.data, U.data, pairs, feedback, floor}, count * pairs.chunks(), 0,
             stream);
    });
  };
  if (U.storage == Storage::float64) {
    run(double());
  } else {
    run(float());
  }
}

void copy(MatrixList A, MatrixList B, int64_t count, int64_t rows, int64_t cols, double alpha, const Frozen& frozen,
          Stream stream) {
  const Pairs pairs{rows, cols, A.strides, B.strides};
  dispatch(A.storage, [&](auto a) {
    dispatch(B.storage, [&](auto b) {
      launch(Copy<decltype(a), decltype(b)>{A.data, B.data, pairs, alpha, frozen}, count * pairs.chunks(), 0, stream);
    });
  });
}

void clear(MatrixList A, int64_t count, int64_t rows, int64_t cols, const Frozen& frozen, Stream stream) {
  const Pairs pairs{rows, cols, A.strides, A.strides};
  dispatch(A.storage, [&](auto a) {
    launch(Clear<decltype(a)>{A.data, pairs, frozen}, count * pairs.chunks(), 0, stream);
  });
}

void bound(MatrixList C, int64_t count, int64_t rows, int64_t cols, Stream stream) {
  const Pairs pairs{rows, cols, C.strides, C.strides};
  launch(Bound{C.data, pairs}, count * pairs.chunks(), 0, stream);
}

void count_nonfinite(MatrixList G, int64_t count, int64_t rows, int64_t cols, int64_t* found, Stream stream) {
  const Pairs pairs{rows, cols, G.strides, G.strides};
  dispatch(G.storage, [&](auto g) {
    launch(CountNonfinite<decltype(g)>{G.data, pairs, found}, count * pairs.chunks(), 0, stream);
  });
}

void round_operand(float* entries, int64_t numel, int mantissa_bits, Stream stream) {
  const auto run = [&](auto program) { launch(program, program.blocks(), 0, stream); };
  if (mantissa_bits == 10) {
    run(RoundOperand<10>{entries, numel});
  } else {
    run(RoundOperand<7>{entries, numel});
  }
}

template <class T>
void step_factors(const StepFactors<T>& factors, Stream stream) {
  launch(factors, 1, 0, stream);
}
template void step_factors(const StepFactors<float>&, Stream);
template void step_factors(const StepFactors<double>&, Stream);

template <class Program>
void update_list(const Program& program, int64_t blocks, Stream stream) {
  launch(program, blocks, Program::shared_bytes, stream);
}
template void update_list(const Lion<float>&, int64_t, Stream);
template void update_list(const Lion<double>&, int64_t, Stream);
template void update_list(const AdamW<float>&, int64_t, Stream);
template void update_list(const AdamW<double>&, int64_t, Stream);

}  // namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE::kernels
