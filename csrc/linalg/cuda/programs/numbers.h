// Numbers in device memory whose type is known when a kernel runs.
#pragma once

#include "linalg/cuda/launch.h"
#include "linalg/cuda/storage.h"
#include "linalg/step_numbers.h"

namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE {

// Calls f with memory of a type that is known when the kernel runs.
template <class F>
TORCHDION_DEVICE void with_entries_of(Storage storage, void* data, const F& f) {
  switch (storage) {
    case Storage::float64:
      return f(static_cast<double*>(data));
    case Storage::float32:
      return f(static_cast<float*>(data));
    case Storage::float16:
      return f(static_cast<Half*>(data));
    default:
      return f(static_cast<BFloat16*>(data));
  }
}

// A contiguous tensor whose type is known when the kernel runs. All threads of a block see the same.
struct Entries {
  void* data;
  Storage storage;

  template <class S>
  S* as() const {
    return static_cast<S*>(data);
  }
  template <class T>
  TORCHDION_DEVICE T get(int64_t i) const {
    T value;
    with_entries_of(storage, data, [&](const auto* entries) { value = static_cast<T>(load(entries[i])); });
    return value;
  }
  template <class T>
  TORCHDION_DEVICE void set(int64_t i, T value) const {
    with_entries_of(storage, data, [&](auto* entries) { store(entries[i], value); });
  }
};

// A hyperparameter: a number, times one in device memory where that is there, which a captured graph reads anew.
struct DeviceNumber {
  double value;
  Entries multiplier;  // null data: none

  TORCHDION_DEVICE double get() const { return multiplier.data ? value * multiplier.get<double>(0) : value; }
};

struct DeviceRates {
  DeviceNumber lr, weight_decay;

  TORCHDION_DEVICE Rates get() const { return {lr.get(), weight_decay.get()}; }
};

// factors ([2]) ← linalg::update_factors().
template <class T>
struct StepFactors {
  static constexpr int threads = 32;
  T* factors;
  double shape_factor;
  DeviceRates rates;
  Frozen frozen;

  Work work(int64_t) const { return {2 * sizeof(T)}; }

  template <class Block>
  TORCHDION_DEVICE void operator()(Block block) const {
    once(block, [&] {
      const UpdateFactors all = update_factors(shape_factor, rates.get(), frozen.all());
      factors[0] = static_cast<T>(all.update);
      factors[1] = static_cast<T>(all.keep);
    });
  }
};

}  // namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE
