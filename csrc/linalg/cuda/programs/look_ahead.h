// The momentum, and what is orthonormalized of it, in one pass (linalg/accumulate.h).
#pragma once

#include <type_traits>

#include "linalg/cuda/programs/elementwise.h"
#include "linalg/cuda/programs/numbers.h"

namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE {

template <class SM, class SG>
struct LookAhead {
  static constexpr int threads = 256;
  static constexpr size_t shared_bytes = threads * sizeof(double);
  void* const* L;
  void* const* M;
  void* const* G;
  Pairs pairs;  // of M and G
  Storage storage;
  Strides strides;  // of L
  GradientRule rule;
  LookAheadFactors ahead;
  double* squares;  // of the entries of L that a block writes; or null

  Work work(int64_t blocks) const {
    int64_t bytes = 2 * sizeof(SM) + sizeof(SG);
    dispatch(storage, [&](auto l) { bytes += sizeof(l); });
    return {pairs.entries(blocks) * bytes};
  }

  template <class Block>
  TORCHDION_DEVICE void operator()(Block block) const {
    with_entries_of(storage, L[pairs.matrix(block.index())], [&](auto* l) {
      using SL = std::remove_pointer_t<decltype(l)>;
      run(block, Output<SL>{l, strides});
    });
  }

 private:
  template <class Block, class SL>
  TORCHDION_DEVICE void run(Block& block, const Output<SL>& output) const {
    using T = Wider<SM, SG>;
    const int64_t matrix = pairs.matrix(block.index());
    SM* m = static_cast<SM*>(M[matrix]);
    const SG* g = static_cast<const SG*>(G[matrix]);
    const MomentumRule<SM, SG> rule_of_M(rule, matrix);
    const T of_G = static_cast<T>(ahead.gradient), of_M = static_cast<T>(ahead.momentum);
    typename Block::template Registers<int64_t> found;
    typename Block::template Registers<double> sum;
    block.each([&](int t) {
      found[t] = 0;
      sum[t] = 0;
    });
    pairs.replace(block, m, g, output, [&](int t, SM& momentum, SG entry, SL& value) {
      const T gradient = rule_of_M.add(momentum, entry, found[t]);
      const T stored = static_cast<T>(load(momentum));
      const T of_both = of_G == 0 ? of_M * stored : of_G * gradient + of_M * stored;
      store(value, rule_of_M.stays ? T(0) : of_both);
      if (squares) sum[t] += static_cast<double>(load(value)) * static_cast<double>(load(value));
    });
    block.each([&](int t) { rule_of_M.count(block, found[t]); });
    if (!squares) return;
    double* partial = block.template shared<double>();
    block.each([&](int t) { partial[t] = sum[t]; });
    sum_of_threads(block, partial);
    once(block, [&] { squares[block.index()] = partial[0]; });
  }
};

}  // namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE
