// Norms of matrices, and what they divide (linalg/newton_schulz.h).
#pragma once

#include <cmath>

#include "linalg/cuda/programs/pairs.h"

namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE {

// factors[i] ← 1 / (slack ‖X_i‖_F), or 0 of zeros, from sums of squares of parts of X_i. Where products of its entries
// would leave the range of FP32, they are divided by a power of two, and the factor is that of the result.
template <class S>
struct FrobeniusFactors {
  using T = ComputeType<S>;
  static constexpr int threads = 256;
  static constexpr size_t shared_bytes = threads * sizeof(double);
  static constexpr int64_t kBlocks = 16;                           // of each matrix
  static constexpr double kLargest = 0x1p60, kSmallest = 0x1p-60;  // squares of norms that suit products

  S* X;  // [count, numel]
  int64_t numel, parts;
  const double* squares;  // [count, parts]
  T* factors;
  double slack;

  Work work(int64_t blocks) const {
    return {blocks / kBlocks * (parts * int64_t{sizeof(double)} + int64_t{sizeof(T)})};
  }

  template <class Block>
  TORCHDION_DEVICE void operator()(Block block) const {
    const int64_t matrix = block.index() / kBlocks, part = block.index() % kBlocks;
    double* partial = block.template shared<double>();
    block.each([&](int t) {
      double sum = 0;
      for (int64_t k = t; k < parts; k += threads) sum += squares[matrix * parts + k];
      partial[t] = sum;
    });
    sum_of_threads(block, partial);
    const double square = partial[0], norm = sqrt(square);
    const bool suits = square == 0 || !(square < kSmallest || square > kLargest) || square - square != 0;
    const int exponent = suits ? 0 : ilogb(norm);
    if (part == 0) {
      once(block, [&] { factors[matrix] = square == 0 ? T(0) : static_cast<T>(1 / (slack * ldexp(norm, -exponent))); });
    }
    if (suits) return;
    S* x = X + matrix * numel;
    block.each([&](int t) {
      for (int64_t i = part * threads + t; i < numel; i += kBlocks * threads) {
        store(x[i], static_cast<T>(ldexp(static_cast<double>(load(x[i])), -exponent)));
      }
    });
  }
};

// B ← f^power (A + a I). A warp has a row.
template <class S>
struct AddIdentity {
  using T = ComputeType<S>;
  static constexpr int threads = 256, kWarp = 32, kRows = threads / kWarp;

  S* B;
  const S* A;
  int64_t rows, p;  // of all matrices; of one
  T a;
  const T* factors;  // or null
  int power;

  int64_t blocks() const { return divide_up(rows, kRows); }
  Work work(int64_t) const { return {rows * p * int64_t{2 * sizeof(S)}}; }

  template <class Block>
  TORCHDION_DEVICE void operator()(Block block) const {
    constexpr int kRun = 16 / sizeof(S);
    const bool in_runs = p % kRun == 0 && is_aligned(A) && is_aligned(B);
    block.each([&](int t) {
      const int64_t row = block.index() * kRows + t / kWarp;
      if (row >= rows) return;
      const int64_t matrix = row / p, diagonal = row - matrix * p;
      const T given = factors ? factors[matrix] : T(1), factor = power == 2 ? given * given : given;
      const S* from = A + row * p;
      S* to = B + row * p;
      const auto put = [&](S& entry, int64_t col) {
        const T old = static_cast<T>(load(entry));
        store(entry, factor * (col == diagonal ? old + a : old));
      };
      if (in_runs) {
        for (int64_t col = t % kWarp * kRun; col < p; col += kWarp * kRun) {
          Run<S, kRun> run = *reinterpret_cast<const Run<S, kRun>*>(from + col);
          TORCHDION_UNROLL
          for (int e = 0; e < kRun; ++e) put(run.entries[e], col + e);
          write_run(to + col, run);
        }
      } else {
        for (int64_t col = t % kWarp; col < p; col += kWarp) {
          S entry = from[col];
          put(entry, col);
          to[col] = entry;
        }
      }
    });
  }
};

}  // namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE
