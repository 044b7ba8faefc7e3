// Small tables from the host, in the arguments of a kernel: no copy that the host would have to wait for, and part of a
// captured graph.
#pragma once

#include "linalg/cuda/launch.h"

namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE {

inline constexpr int kFewWords = 460,
                     kManyWords = 4000;  // with the rest, within 4 KiB, and what a kernel takes at most

template <int Words>
struct Upload {
  static constexpr int threads = 256;
  uint64_t* target;
  int64_t count;
  uint64_t words[Words];

  Work work(int64_t) const { return {count * int64_t{sizeof(uint64_t)}}; }

  template <class Block>
  TORCHDION_DEVICE void operator()(Block block) const {
    block.each([&](int t) {
      for (int64_t i = t; i < count; i += threads) target[i] = words[i];
    });
  }
};

}  // namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE
