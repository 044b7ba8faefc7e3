// Sums over the threads of a block, in orders of their own.
#pragma once

#include "linalg/cuda/block.h"

namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE {

namespace detail {

// Of every `width` threads, a power of two, the sum goes to the first.
template <class Block, class T>
TORCHDION_DEVICE void sum_of(Block& block, T* numbers, int width) {
  for (int half = width / 2; half > 0; half /= 2) {
    block.each([&](int t) {
      if (t % width < half) numbers[t] += numbers[t + half];
    });
  }
}

}  // namespace detail

// numbers[0] ← the sum of all threads' numbers, which lie in shared memory.
template <class Block, class T>
TORCHDION_DEVICE void sum_of_threads(Block& block, T* numbers) {
  detail::sum_of(block, numbers, Block::threads);
}

// numbers[32 w] ← that of warp w.
template <class Block, class T>
TORCHDION_DEVICE void sum_of_warps(Block& block, T* numbers) {
  detail::sum_of(block, numbers, Block::kWarp);
}

}  // namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE
