// Small tables from the host, in the arguments of a kernel: no copy that the host would have to wait for, and part of a
// captured graph.
#pragma once

#include "linalg/cuda/launch.h"

namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE {

struct Upload {
  static constexpr int threads = 256;
  static constexpr int64_t kWords = 460;  // with the rest, within the 4 KiB that every GPU takes as arguments
  uint64_t* target;
  int64_t count;
  uint64_t words[kWords];

  template <class Block>
  TORCHDION_DEVICE void operator()(Block block) const {
    block.each([&](int t) {
      for (int64_t i = t; i < count; i += threads) target[i] = words[i];
    });
  }
};

}  // namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE
