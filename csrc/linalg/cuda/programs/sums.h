// Sums over the threads of a block, in orders of their own, and the larger of two numbers.
#pragma once

#include "linalg/cuda/block.h"

namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE {

// Of numbers of all threads in shared memory: the sum of every `width` of them, a power of two, goes to the first.
template <class Block, class T>
TORCHDION_DEVICE void sum_of_threads(Block& block, T* numbers, int width = Block::threads) {
  for (int half = width / 2; half > 0; half /= 2) {
    block.each([&](int t) {
      if (t % width < half) numbers[t] += numbers[t + half];
    });
  }
}

// NaN is larger than any number.
template <class T>
TORCHDION_DEVICE T larger(T a, T b) {
  return a != a || b <= a ? a : b;
}

}  // namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE
