// Lion and AdamW over lists of tensors of any sizes and dtypes.
#pragma once

#ifndef __CUDACC__
#include <cstring>
#endif
#include <type_traits>
#include <utility>

#include "linalg/cuda/programs/elementwise.h"
#include "linalg/cuda/programs/numbers.h"
#include "linalg/rules/adamw.h"
#include "linalg/rules/lion.h"

namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE {

// One parameter with its gradient and states, without a byte of padding: equal ones have equal bytes.
template <int States>
struct ListedTensor {
  static constexpr int kOperands = 2 + States, kX = 0, kG = 1, kStates = 2;

  void* data[kOperands];  // X, G, and the states
  int64_t numel;
  int64_t first_block;        // of the grid
  const float* steps_before;  // the count of steps where it is on the device, this one not included; else null
  Storage storage[8];         // of each of `data`

  TORCHDION_HOST_DEVICE Entries operand(int i) const { return {data[i], storage[i]}; }
};

// Neighbours in one tensor, as they are stored: 16 bytes of what is as wide as the type to compute in, less of others.
// Whatever their type, they are loaded before any of them is looked at.
template <class T>
struct StoredRun {
  static constexpr int kBytes = 16, kCount = kBytes / sizeof(T);
  Run<char, kBytes> bytes;

  template <class S>
  static constexpr bool kFits = sizeof(S) <= sizeof(T);

  template <class S>
  TORCHDION_DEVICE void load_from(const S* data) {
    if constexpr (kFits<S>) {
      const Run<S, kCount> run = *reinterpret_cast<const Run<S, kCount>*>(data);
      memcpy(&bytes, &run, sizeof run);
    }
  }
  template <class S>
  TORCHDION_DEVICE void read_as(const S*, T (&values)[kCount]) const {
    if constexpr (kFits<S>) {
      Run<S, kCount> run;
      memcpy(&run, &bytes, sizeof run);
      TORCHDION_UNROLL
      for (int e = 0; e < kCount; ++e) values[e] = static_cast<T>(load(run.entries[e]));
    }
  }
  template <class S>
  static TORCHDION_DEVICE void write(S* data, const T (&values)[kCount]) {
    if constexpr (kFits<S>) {
      Run<S, kCount> run;
      TORCHDION_UNROLL
      for (int e = 0; e < kCount; ++e) store(run.entries[e], values[e]);
      write_run(data, run);
    }
  }
};

// One step of a rule (linalg/elementwise.h). A block has a chunk of one tensor.
template <class Rule>
struct ListUpdate {
  using TakenRule = Rule;
  using T = typename Rule::Number;
  using Tensor = ListedTensor<Rule::states>;
  using Stored = StoredRun<T>;
  static constexpr int threads = 256, blocks_at_once = 2, kOperands = Tensor::kOperands;
  static constexpr int kRun = Stored::kCount, kAtOnce = 2;  // runs of an operand that a thread has in flight
  static constexpr int64_t kStep = int64_t{threads} * kRun, kChunk = 8 * kAtOnce * kStep;
  static constexpr size_t shared_bytes = Rule::corrections * sizeof(double);

  const Tensor* tensors;  // in device memory
  int64_t count;
  DeviceRates rates;
  typename Rule::Hyperparameters hyper;
  GradientRule gradients;
  Decay decay;
  // Where the host knows how many steps there have been: of all tensors, or, where this is there, of each.
  double corrections[Rule::corrections > 0 ? Rule::corrections : 1];
  const double* corrections_of_each;
  Work of_list;  // whose sizes the host alone knows

  static int64_t blocks_of(int64_t numel) { return divide_up(numel, kChunk); }
  Work work(int64_t) const { return of_list; }

  template <class Block>
  TORCHDION_DEVICE void operator()(Block block) const {
    if (gradients.frozen.all()) return;
    const int64_t number = tensor_of(block.index());
    const Tensor tensor = tensors[number];
    const double least = least_momentum(tensor.storage[Tensor::kStates]);
    const Rule rule(hyper, rates.get(), least, corrections_of(block, tensor, number));
    with_constant(decay, [&](auto constant) { update<constant()>(block, rule, tensor); });
  }

 private:
  using States = std::make_index_sequence<Rule::states>;

  // The last that begins at a block or before.
  TORCHDION_DEVICE int64_t tensor_of(int64_t block) const {
    int64_t low = 0, high = count;
    while (high - low > 1) {
      const int64_t middle = (low + high) / 2;
      (tensors[middle].first_block <= block ? low : high) = middle;
    }
    return low;
  }

  template <class Block>
  TORCHDION_DEVICE const double* corrections_of(Block& block, const Tensor& tensor, int64_t number) const {
    if constexpr (Rule::corrections > 0) {
      if (tensor.steps_before) {
        double* made = block.template shared<double>();
        block.each([&](int t) {
          if (t < Rule::corrections) made[t] = Rule::correction(hyper, double(*tensor.steps_before) + 1, t);
        });
        return made;
      }
      if (corrections_of_each) return corrections_of_each + number * Rule::corrections;
    }
    return corrections;
  }

  // Whether all of a tensor's operands can be read in runs.
  static TORCHDION_DEVICE bool has_runs(const Tensor& tensor) {
    bool all = true;
    for (int k = 0; k < kOperands; ++k) {
      with_entries_of(tensor.storage[k], tensor.data[k], [&](auto* data) {
        all = all && is_aligned(data) && Stored::template kFits<std::remove_pointer_t<decltype(data)>>;
      });
    }
    return all;
  }

  template <Decay taken, class Block>
  TORCHDION_DEVICE void update(Block& block, const Rule& rule, const Tensor& tensor) const {
    const T factor = static_cast<T>(gradients.total_factor());
    const int64_t begin = (block.index() - tensor.first_block) * kChunk;
    const int64_t end = begin + kChunk < tensor.numel ? begin + kChunk : tensor.numel;
    const bool in_runs = has_runs(tensor);
    block.each([&](int t) {
      int64_t found = 0;
      each_in_runs<kRun, kAtOnce>(
          begin + int64_t{t} * kRun, end, kStep, in_runs,
          [&](int64_t first) { update_runs<taken>(rule, tensor, first, factor, found, States()); },
          [&](int64_t i) { update_entry<taken>(rule, tensor, i, factor, found, States()); });
      if (gradients.zeroed) block.add(gradients.zeroed, found);
    });
  }

  template <Decay taken, size_t... State>
  TORCHDION_DEVICE void update_runs(const Rule& rule, const Tensor& tensor, int64_t first, T factor, int64_t& found,
                                    std::index_sequence<State...>) const {
    Stored stored[kAtOnce][kOperands];
    TORCHDION_UNROLL
    for (int k = 0; k < kOperands; ++k) {
      with_entries_of(tensor.storage[k], tensor.data[k], [&](auto* data) {
        TORCHDION_UNROLL
        for (int r = 0; r < kAtOnce; ++r) stored[r][k].load_from(data + first + r * kStep);
      });
    }
    T values[kAtOnce][kOperands][kRun];
    TORCHDION_UNROLL
    for (int k = 0; k < kOperands; ++k) {
      with_entries_of(tensor.storage[k], tensor.data[k], [&](auto* data) {
        TORCHDION_UNROLL
        for (int r = 0; r < kAtOnce; ++r) stored[r][k].read_as(data, values[r][k]);
      });
    }
    TORCHDION_UNROLL
    for (int r = 0; r < kAtOnce; ++r) {
      TORCHDION_UNROLL
      for (int e = 0; e < kRun; ++e) {
        const T g = factor * counted(gradients, values[r][Tensor::kG][e], found);
        rule.template update<taken>(values[r][Tensor::kX][e], g, values[r][Tensor::kStates + State][e]...);
      }
    }
    TORCHDION_UNROLL
    for (int k = 0; k < kOperands; ++k) {
      if (k == Tensor::kG) continue;
      with_entries_of(tensor.storage[k], tensor.data[k], [&](auto* data) {
        TORCHDION_UNROLL
        for (int r = 0; r < kAtOnce; ++r) Stored::write(data + first + r * kStep, values[r][k]);
      });
    }
  }

  template <Decay taken, size_t... State>
  TORCHDION_DEVICE void update_entry(const Rule& rule, const Tensor& tensor, int64_t i, T factor, int64_t& found,
                                     std::index_sequence<State...>) const {
    const Entries X = tensor.operand(Tensor::kX), of_states[] = {tensor.operand(Tensor::kStates + State)...};
    T x = X.template get<T>(i), states[] = {of_states[State].template get<T>(i)...};
    const T g = factor * counted(gradients, tensor.operand(Tensor::kG).template get<T>(i), found);
    rule.template update<taken>(x, g, states[State]...);
    X.set(i, x);
    (of_states[State].set(i, states[State]), ...);
  }
};

// Kernels by names of one word, as profiles list them.
template <class T>
struct Lion : ListUpdate<LionRule<T>> {};
template <class T>
struct AdamW : ListUpdate<AdamWRule<T>> {};

}  // namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE
