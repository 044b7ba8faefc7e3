// Lion and AdamW over lists of tensors of any sizes and dtypes.
#pragma once

#include <utility>

#include "linalg/cuda/programs/elementwise.h"
#include "linalg/cuda/programs/numbers.h"
#include "linalg/rules/adamw.h"
#include "linalg/rules/lion.h"

namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE {

// One parameter with its gradient and states.
template <int States>
struct ListedTensor {
  Entries X, G, states[States];
  int64_t numel;
  int64_t first_block;        // of the grid
  const float* steps_before;  // the count of steps where it is on the device, this one not included; else null
  double step;                // this one included
};

// One step of a rule (linalg/elementwise.h).
template <class Rule>
struct ListUpdate {
  using T = typename Rule::Number;
  using Tensor = ListedTensor<Rule::states>;
  static constexpr int threads = 256;
  static constexpr size_t shared_bytes = Rule::corrections * sizeof(double);

  const Tensor* tensors;  // in device memory
  int64_t count;
  DeviceNumber lr, weight_decay;
  typename Rule::Hyperparameters hyper;  // the others
  GradientRule gradients;                // with the sign that maximize gives it
  Work of_list;                          // whose sizes the host alone knows

  Work work(int64_t) const { return of_list; }

  template <class Block>
  TORCHDION_DEVICE void operator()(Block block) const {
    if (gradients.leaves_out()) return;
    const Tensor tensor = of_block(block.index());
    double* corrections = block.template shared<double>();
    if constexpr (Rule::corrections > 0) {
      block.each([&](int t) {
        const double step = tensor.steps_before ? double(*tensor.steps_before) + 1 : tensor.step;
        if (t < Rule::corrections) corrections[t] = Rule::correction(hyper, step, t);
      });
    }
    typename Rule::Hyperparameters read = hyper;
    read.lr = lr.get();
    read.weight_decay = weight_decay.get();
    const Rule rule(read, least_momentum(tensor.states[0].storage), corrections);
    constexpr auto states = std::make_index_sequence<Rule::states>();
    if (hyper.cautious) {
      each(block, tensor, [&](int64_t i, T g) { update<true>(rule, tensor, i, g, states); });
    } else {
      each(block, tensor, [&](int64_t i, T g) { update<false>(rule, tensor, i, g, states); });
    }
  }

 private:
  // Which tensor a block works on: the last that begins at it or before.
  TORCHDION_DEVICE Tensor of_block(int64_t block) const {
    int64_t low = 0, high = count;
    while (high - low > 1) {
      const int64_t middle = (low + high) / 2;
      (tensors[middle].first_block <= block ? low : high) = middle;
    }
    return tensors[low];
  }

  // Calls body(i, gradient) for every entry of the block's chunk.
  template <class Block, class Body>
  TORCHDION_DEVICE void each(Block& block, const Tensor& tensor, const Body& body) const {
    const T factor = static_cast<T>(gradients.total_factor());
    typename Block::template Registers<int64_t> found;
    block.each([&](int t) {
      found[t] = 0;
      for (int k = 0; k < kElementsPerThread; ++k) {
        const int64_t i = ((block.index() - tensor.first_block) * kElementsPerThread + k) * Block::threads + t;
        if (i >= tensor.numel) break;
        body(i, factor * counted(gradients, tensor.G.template get<T>(i), found[t]));
      }
      if (gradients.zeroed) block.add(gradients.zeroed, found[t]);
    });
  }

  template <bool cautious, size_t... State>
  static TORCHDION_DEVICE void update(const Rule& rule, const Tensor& tensor, int64_t i, T g,
                                      std::index_sequence<State...>) {
    T x = tensor.X.template get<T>(i), states[] = {tensor.states[State].template get<T>(i)...};
    rule.template update<cautious>(x, g, states[State]...);
    tensor.X.set(i, x);
    (tensor.states[State].set(i, states[State]), ...);
  }
};

// Kernels by names of one word, as profiles list them.
template <class T>
struct Lion : ListUpdate<LionRule<T>> {};
template <class T>
struct AdamW : ListUpdate<AdamWRule<T>> {};

}  // namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE
