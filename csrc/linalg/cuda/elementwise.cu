#include <algorithm>

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
  std::copy_n(words, count, program.words);
  launch(program, 1, 0, stream);
}

Pairs pairs_of(const MatrixList& a, const MatrixList& b) { return {a.rows, a.cols, a.strides, b.strides}; }

// A program of two lists, whose types are its own, with the rest of what it takes.
template <template <class, class> class Program, class... Rest>
void launch_pairs(const MatrixList& A, const MatrixList& B, Stream stream, const Rest&... rest) {
  const Pairs pairs = pairs_of(A, B);
  dispatch(A.storage, [&](auto a) {
    dispatch(B.storage, [&](auto b) {
      launch(Program<decltype(a), decltype(b)>{A.data, B.data, pairs, rest...}, A.count * pairs.chunks(), 0, stream);
    });
  });
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

void accumulate(MatrixList M, MatrixList G, const GradientRule& rule, Stream stream) {
  launch_pairs<Accumulate>(M, G, stream, rule);
}

int64_t parts_of(int64_t rows, int64_t cols) { return Pairs{rows, cols, {}, {}}.chunks(); }

void look_ahead(MatrixList L, MatrixList M, MatrixList G, const GradientRule& rule, const LookAheadFactors& ahead,
                double* squares, Stream stream) {
  const Pairs pairs = pairs_of(M, G);
  dispatch(M.storage, [&](auto m) {
    dispatch(G.storage, [&](auto g) {
      using Program = LookAhead<decltype(m), decltype(g)>;
      launch(Program{L.data, M.data, G.data, pairs, L.storage, L.strides, rule, ahead, squares},
             M.count * pairs.chunks(), Program::shared_bytes, stream);
    });
  });
}

void axpby(MatrixList X, MatrixList U, const void* factors, const DirectionRule& rule, const void* scales,
           Stream stream) {
  launch_pairs<Axpby>(X, U, stream, factors, rule, scales);
}

void take_signs(MatrixList U, MatrixList L, double feedback, FloorOfSigns floor, Stream stream) {
  const Pairs pairs = pairs_of(L, U);
  dispatch_computed(U.storage, [&](auto u) {
    dispatch(L.storage, [&](auto l) {
      launch(TakeSigns<decltype(l), decltype(u)>{L.data, U.data, pairs, feedback, floor}, U.count * pairs.chunks(), 0,
             stream);
    });
  });
}

void copy(MatrixList A, MatrixList B, double alpha, const Frozen& frozen, Stream stream) {
  launch_pairs<Copy>(A, B, stream, alpha, frozen);
}

void clear(MatrixList A, const Frozen& frozen, Stream stream) {
  const Pairs pairs = pairs_of(A, A);
  dispatch(A.storage, [&](auto a) {
    launch(Clear<decltype(a)>{A.data, pairs, frozen}, A.count * pairs.chunks(), 0, stream);
  });
}

void bound(MatrixList C, Stream stream) {
  const Pairs pairs = pairs_of(C, C);
  launch(Bound{C.data, pairs}, C.count * pairs.chunks(), 0, stream);
}

void count_nonfinite(MatrixList G, int64_t* found, Stream stream) {
  const Pairs pairs = pairs_of(G, G);
  dispatch(G.storage, [&](auto g) {
    launch(CountNonfinite<decltype(g)>{G.data, pairs, found}, G.count * pairs.chunks(), 0, stream);
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

void step_factors(Entries factors, double shape_factor, const DeviceRates& rates, const Frozen& frozen, Stream stream) {
  dispatch_computed(factors.storage, [&](auto number) {
    using T = decltype(number);
    launch(StepFactors<T>{factors.as<T>(), shape_factor, rates, frozen}, 1, 0, stream);
  });
}

template <class Program>
void update_list(const Program& program, int64_t blocks, Stream stream) {
  launch(program, blocks, Program::shared_bytes, stream);
}
template void update_list(const Lion<float>&, int64_t, Stream);
template void update_list(const Lion<double>&, int64_t, Stream);
template void update_list(const AdamW<float>&, int64_t, Stream);
template void update_list(const AdamW<double>&, int64_t, Stream);

}  // namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE::kernels
