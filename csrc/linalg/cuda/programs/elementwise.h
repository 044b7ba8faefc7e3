// Entry by entry over lists of matrices, or of whole tensors taken as matrices of one row.
#pragma once

#include "linalg/cuda/launch.h"
#include "linalg/cuda/storage.h"
#include "linalg/step_numbers.h"

namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE {

inline constexpr int kElementsPerThread = 8;  // loads in flight

TORCHDION_HOST_DEVICE bool is_finite(double value) { return value - value == 0; }

// Where the entries of one of two equally shaped matrices lie.
struct Strides {
  int64_t row = 0, col = 1;
};

// Calls body(matrix, offset in a, offset in b) for every entry of the block's chunk, in the order of a's memory, whose
// rows are contiguous.
struct Pairs {
  int64_t rows, cols;
  Strides a, b;

  static constexpr int kChunk = 256 * kElementsPerThread;

  int64_t chunks() const { return divide_up(rows * cols, kChunk); }
  TORCHDION_HOST_DEVICE bool are_flat() const { return a.row == cols && b.row == cols && b.col == 1; }

  template <class Block, class Body>
  TORCHDION_DEVICE void each(Block& block, const Body& body) const {
    const int64_t numel = rows * cols, chunks = (numel + kChunk - 1) / kChunk;
    const int64_t matrix = block.index() / chunks, begin = block.index() % chunks * kChunk;
    block.each([&](int t) {
      for (int i = 0; i < kElementsPerThread; ++i) {
        const int64_t element = begin + t + i * Block::threads;
        if (element >= numel) break;
        if (are_flat()) {
          body(t, matrix, element, element);
        } else {
          const int64_t row = element / cols, col = element % cols;
          body(t, matrix, row * a.row + col, row * b.row + col * b.col);
        }
      }
    });
  }
};

// M ← M + G as the rule has it.
template <class SM, class SG>
struct Accumulate {
  static constexpr int threads = 256;
  void* const* M;
  void* const* G;
  Pairs pairs;
  GradientRule rule;

  template <class Block>
  TORCHDION_DEVICE void operator()(Block block) const {
    using T = typename ComputeType<SM>::type;
    if (rule.leaves_out()) return;
    const T alpha = static_cast<T>(rule.total_factor());
    typename Block::template Registers<int64_t> found;
    block.each([&](int t) { found[t] = 0; });
    pairs.each(block, [&](int t, int64_t matrix, int64_t m, int64_t g) {
      SM* target = static_cast<SM*>(M[matrix]) + m;
      T entry = static_cast<T>(load(static_cast<const SG*>(G[matrix])[g]));
      if (rule.zeroed && !is_finite(entry)) {
        entry = 0;
        ++found[t];
      }
      store(*target, static_cast<T>(load(*target)) + alpha * entry);
    });
    block.each([&](int t) {
      if (rule.zeroed) block.add(rule.zeroed, found[t]);
    });
  }
};

// A ← α B, unless it is left out.
template <class SA, class SB>
struct Copy {
  static constexpr int threads = 256;
  void* const* A;
  void* const* B;
  Pairs pairs;
  double alpha;
  const float* left_out;  // or null

  template <class Block>
  TORCHDION_DEVICE void operator()(Block block) const {
    using T = typename ComputeType<SA>::type;
    if (left_out && *left_out != 0) return;
    pairs.each(block, [&](int, int64_t matrix, int64_t a, int64_t b) {
      const T entry = static_cast<T>(load(static_cast<const SB*>(B[matrix])[b]));
      store(static_cast<SA*>(A[matrix])[a], static_cast<T>(alpha) * entry);
    });
  }
};

// *found += the entries of G that are NaN or infinite.
template <class SG>
struct CountNonfinite {
  static constexpr int threads = 256;
  void* const* G;
  Pairs pairs;
  int64_t* found;

  template <class Block>
  TORCHDION_DEVICE void operator()(Block block) const {
    typename Block::template Registers<int64_t> seen;
    block.each([&](int t) { seen[t] = 0; });
    pairs.each(block, [&](int t, int64_t matrix, int64_t g, int64_t) {
      seen[t] += !is_finite(load(static_cast<const SG*>(G[matrix])[g]));
    });
    block.each([&](int t) { block.add(found, seen[t]); });
  }
};

// Each entry of P rounded to what a tensor core reads, and, where `exact` is there, copied to FP64 for its Gram matrix.
// Contiguous.
template <int Kept>
struct RoundOperand {
  static constexpr int threads = 256;
  float* P;
  double* exact;  // or null
  int64_t numel;

  template <class Block>
  TORCHDION_DEVICE void operator()(Block block) const {
    block.each([&](int t) {
      for (int i = 0; i < kElementsPerThread; ++i) {
        const int64_t element = (block.index() * kElementsPerThread + i) * Block::threads + t;
        if (element >= numel) break;
        const float rounded = Kept == 23 ? P[element] : round_mantissa<Kept>(P[element]);
        if (Kept != 23) P[element] = rounded;
        if (exact) exact[element] = rounded;
      }
    });
  }
};

}  // namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE
