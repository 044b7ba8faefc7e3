// Lion and AdamW over lists of tensors of any sizes and dtypes.
#pragma once

#include <cmath>

#include "linalg/cuda/programs/elementwise.h"
#include "linalg/cuda/programs/numbers.h"

namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE {

// One parameter with its gradient and state.
struct ListedTensor {
  Entries X, G, M, V;  // V: AdamW's alone
  int64_t numel;
  int64_t first_block;        // of the grid
  const float* steps_before;  // the count of steps where it is on the device, this one not included; else null
  double step;                // this one included
};

struct ListedUpdate {
  const ListedTensor* tensors;  // in device memory
  int64_t count;
  DeviceNumber lr, weight_decay;
  double beta1, beta2, epsilon;
  GradientRule rule;  // with the sign that maximize gives it
  Work work;          // of the whole list, whose sizes the host alone knows

  // Which tensor a block works on: the last that begins at it or before.
  TORCHDION_DEVICE ListedTensor of_block(int64_t block) const {
    int64_t low = 0, high = count;
    while (high - low > 1) {
      const int64_t middle = (low + high) / 2;
      (tensors[middle].first_block <= block ? low : high) = middle;
    }
    return tensors[low];
  }

  // Calls body(i, gradient) for every entry of the block's chunk.
  template <class T, class Block, class Body>
  TORCHDION_DEVICE void each(Block& block, const ListedTensor& tensor, const Body& body) const {
    const T factor = static_cast<T>(rule.total_factor());
    typename Block::template Registers<int64_t> found;
    block.each([&](int t) {
      found[t] = 0;
      for (int k = 0; k < kElementsPerThread; ++k) {
        const int64_t i = ((block.index() - tensor.first_block) * kElementsPerThread + k) * Block::threads + t;
        if (i >= tensor.numel) break;
        T g = tensor.G.template get<T>(i);
        if (rule.zeroed && !is_finite(g)) {
          g = 0;
          ++found[t];
        }
        body(i, factor * g);
      }
      if (rule.zeroed) block.add(rule.zeroed, found[t]);
    });
  }
};

// X ← (1 − η λ) X − η sign(β₁ M + (1 − β₁) G);  M ← β₂ M + (1 − β₂) G.
template <class T>
struct Lion {
  static constexpr int threads = 256;
  ListedUpdate update;

  Work work(int64_t) const { return update.work; }

  template <class Block>
  TORCHDION_DEVICE void operator()(Block block) const {
    if (update.rule.leaves_out()) return;
    const ListedTensor tensor = update.of_block(block.index());
    const double lr = update.lr.get();
    const T keep = static_cast<T>(1 - lr * update.weight_decay.get()), rate = static_cast<T>(lr);
    const T beta1 = static_cast<T>(update.beta1), rest1 = static_cast<T>(1 - update.beta1);
    const T beta2 = static_cast<T>(update.beta2), rest2 = static_cast<T>(1 - update.beta2);
    const T least = static_cast<T>(least_momentum(tensor.M.storage));
    update.template each<T>(block, tensor, [&](int64_t i, T g) {
      const T m = tensor.M.template get<T>(i), mixed = beta1 * m + rest1 * g;
      const T sign = mixed > 0 ? T(1) : mixed < 0 ? T(-1) : mixed;  // a NaN stays one: it must reach the weights
      tensor.X.set(i, keep * tensor.X.template get<T>(i) - rate * sign);
      tensor.M.set(i, zero_below(least, beta2 * m + rest2 * g));
    });
  }
};

// AdamW with bias correction, as torch.optim.AdamW computes it.
template <class T>
struct AdamW {
  static constexpr int threads = 256;
  static constexpr size_t shared_bytes = 2 * sizeof(double);
  ListedUpdate update;

  Work work(int64_t) const { return update.work; }

  template <class Block>
  TORCHDION_DEVICE void operator()(Block block) const {
    if (update.rule.leaves_out()) return;
    const ListedTensor tensor = update.of_block(block.index());
    double* corrections = block.template shared<double>();  // 1 − βᵢᵗ of both moments, which cost more than an entry
    block.each([&](int t) {
      const double step = tensor.steps_before ? double(*tensor.steps_before) + 1 : tensor.step;
      if (t < 2) corrections[t] = 1 - pow(t == 0 ? update.beta1 : update.beta2, step);
    });
    const double lr = update.lr.get();
    const T keep = static_cast<T>(1 - lr * update.weight_decay.get()), rate = static_cast<T>(lr / corrections[0]);
    const T root2 = static_cast<T>(sqrt(corrections[1])), epsilon = static_cast<T>(update.epsilon);
    const T beta1 = static_cast<T>(update.beta1), rest1 = static_cast<T>(1 - update.beta1);
    const T beta2 = static_cast<T>(update.beta2), rest2 = static_cast<T>(1 - update.beta2);
    update.template each<T>(block, tensor, [&](int64_t i, T g) {
      const T m = beta1 * tensor.M.template get<T>(i) + rest1 * g;
      const T v = beta2 * tensor.V.template get<T>(i) + rest2 * g * g;
      tensor.X.set(i, keep * tensor.X.template get<T>(i) - rate * m / (sqrt(v) / root2 + epsilon));
      tensor.M.set(i, m);
      tensor.V.set(i, v);
    });
  }
};

}  // namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE
