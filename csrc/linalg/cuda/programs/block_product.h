// Products of 64×64 blocks by the threads of one block, in the arithmetic of the entries.
#pragma once

#include "linalg/cuda/launch.h"

namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE {

// Σ_l a_il b_jl over chunks of up to 64 terms. A thread has the entries (row, column) of a block of sums with
// row ≡ t / 16 and column ≡ t mod 16, modulo 16.
template <class T>
struct BlockProduct {
  static constexpr int kWidth = 64, kSide = 16, kOwn = kWidth / kSide, threads = kSide * kSide;
  static constexpr int kPadded = kWidth + 1;  // so that a column of a chunk lies in different banks
  static constexpr size_t shared_bytes = 2 * kWidth * kPadded * sizeof(T);

  struct Sums {
    T sum[kOwn][kOwn];
  };

  static TORCHDION_DEVICE int row_of(int t, int a) { return t / kSide + a * kSide; }
  static TORCHDION_DEVICE int column_of(int t, int b) { return t % kSide + b * kSide; }

  static TORCHDION_DEVICE T* left(char* memory) { return reinterpret_cast<T*>(memory); }
  static TORCHDION_DEVICE T* right(char* memory) { return left(memory) + kWidth * kPadded; }

  static TORCHDION_DEVICE void clear(Sums& own) {
    TORCHDION_UNROLL
    for (int a = 0; a < kOwn; ++a) {
      TORCHDION_UNROLL
      for (int b = 0; b < kOwn; ++b) own.sum[a][b] = 0;
    }
  }

  // Adds the products of `depth` terms: left[l][i] right[l][j].
  static TORCHDION_DEVICE void add(int t, const T* left, const T* right, int depth, Sums& own) {
    for (int l = 0; l < depth; ++l) {
      T a_of[kOwn], b_of[kOwn];
      TORCHDION_UNROLL
      for (int k = 0; k < kOwn; ++k) {
        a_of[k] = left[l * kPadded + row_of(t, k)];
        b_of[k] = right[l * kPadded + column_of(t, k)];
      }
      TORCHDION_UNROLL
      for (int a = 0; a < kOwn; ++a) {
        TORCHDION_UNROLL
        for (int b = 0; b < kOwn; ++b) own.sum[a][b] += a_of[a] * b_of[b];
      }
    }
  }

  // f(row, column, sum) of each that the thread has.
  template <class F>
  static TORCHDION_DEVICE void each(int t, const Sums& own, F f) {
    TORCHDION_UNROLL
    for (int a = 0; a < kOwn; ++a) {
      TORCHDION_UNROLL
      for (int b = 0; b < kOwn; ++b) f(row_of(t, a), column_of(t, b), own.sum[a][b]);
    }
  }
};

}  // namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE
