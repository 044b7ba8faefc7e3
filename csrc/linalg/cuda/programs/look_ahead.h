// The momentum, and what is orthonormalized of it, in one pass (linalg/look_ahead.h).
#pragma once

#include "linalg/cuda/programs/elementwise.h"
#include "linalg/cuda/programs/numbers.h"
#include "linalg/look_ahead_factors.h"

namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE {

template <class SM, class SG>
struct LookAhead {
  static constexpr int threads = 256;
  void* const* L;
  void* const* M;
  void* const* G;
  Pairs pairs;  // of M and G
  Storage storage;
  Strides strides;  // of L
  GradientRule rule;
  LookAheadFactors ahead;

  Work work(int64_t blocks) const {
    int64_t bytes = 2 * sizeof(SM) + sizeof(SG);
    dispatch(storage, [&](auto l) { bytes += sizeof(l); });
    return {pairs.entries(blocks) * bytes};
  }

  struct Pair {
    SM m;
    SG g;
  };

  template <class Block>
  TORCHDION_DEVICE void operator()(Block block) const {
    using T = Wider<SM, SG>;
    const int64_t matrix = pairs.matrix(block.index());
    SM* m = static_cast<SM*>(M[matrix]);
    const SG* g = static_cast<const SG*>(G[matrix]);
    const Entries l{L[matrix], storage};
    const T keep = static_cast<T>(rule.keep), factor = static_cast<T>(rule.total_factor());
    const T least = static_cast<T>(LeastMomentum<SM>::value);
    const T of_G = static_cast<T>(ahead.gradient), of_M = static_cast<T>(ahead.momentum);
    const bool flat = pairs.a.row == pairs.cols && strides.row == pairs.cols && strides.col == 1;
    const bool leaves_out = rule.leaves_out(), stays = leaves_out || rule.keeps_all(matrix);
    typename Block::template Registers<int64_t> found;
    block.each([&](int t) { found[t] = 0; });
    pairs.each(
        block,
        [&](int64_t i, int64_t k) {
          return Pair{m[i], g[k]};
        },
        [&](int t, int64_t i, const Pair& entries) {
          const T gradient = factor * counted(rule, static_cast<T>(load(entries.g)), found[t]);
          if (!stays) store(m[i], accumulated(least, keep, static_cast<T>(load(entries.m)), gradient));
          const T momentum = static_cast<T>(load(m[i]));
          const T value = of_G == 0 ? of_M * momentum : of_G * gradient + of_M * momentum;
          const int64_t place = flat ? i : i / pairs.a.row * strides.row + i % pairs.a.row * strides.col;
          l.set(place, stays ? T(0) : value);
        });
    block.each([&](int t) {
      if (rule.zeroed && !leaves_out) block.add(rule.zeroed, found[t]);
    });
  }
};

}  // namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE
