// The entries of the largest magnitude of each row, by a radix selection of their threshold.
#pragma once

#include "linalg/cuda/programs/radix_select.h"

namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE {

// A block has one row. It finds the k-th largest magnitude, and then copies what is above it, and of what equals it the
// first.
template <class T>
struct TopK {
  using Bits = typename Magnitude<T>::Bits;
  static constexpr int threads = 256;

  const T* entries;
  T* chosen;
  int64_t size, k;

  struct Shared {
    RadixSelect<Bits, threads> of_largest;
    int64_t above[threads], equal[threads];  // of each thread's entries; then of those before it
  };
  static constexpr size_t shared_bytes = sizeof(Shared);

  Work work(int64_t blocks) const { return {blocks * (size + 2 * k) * int64_t{sizeof(T)}}; }

  template <class Block>
  TORCHDION_DEVICE void operator()(Block block) const {
    const T* row = entries + block.index() * size;
    Shared& shared = *block.template shared<Shared>();
    block.each([&](int t) {
      if (t == 0) shared.of_largest.begin(k);
    });
    shared.of_largest.find(block, size, [&](int64_t i) { return magnitude_of(row[i]); });
    count(block, row);
    write(block, row, chosen + block.index() * 2 * k);
  }

 private:
  // Entries of thread t: those of neighbouring places, so that counts of threads are in the order of places.
  TORCHDION_DEVICE int64_t first_of(int t) const { return size * t / threads; }

  template <class Block>
  TORCHDION_DEVICE void count(Block& block, const T* row) const {
    Shared& shared = *block.template shared<Shared>();
    block.each([&](int t) {
      int64_t above = 0, equal = 0;
      for (int64_t i = first_of(t); i < first_of(t + 1); ++i) {
        const Bits bits = magnitude_of(row[i]);
        above += bits > shared.of_largest.threshold;
        equal += bits == shared.of_largest.threshold;
      }
      shared.above[t] = above;
      shared.equal[t] = equal;
    });
    block.each([&](int t) {
      if (t > 0) return;
      int64_t above = 0, equal = 0;
      for (int i = 0; i < threads; ++i) {
        const int64_t own_above = shared.above[i], own_equal = shared.equal[i];
        shared.above[i] = above;
        shared.equal[i] = equal;
        above += own_above;
        equal += own_equal;
      }
    });
  }

  template <class Block>
  TORCHDION_DEVICE void write(Block& block, const T* row, T* out) const {
    Shared& shared = *block.template shared<Shared>();
    const auto& largest = shared.of_largest;
    block.each([&](int t) {
      int64_t above = shared.above[t], equal = shared.equal[t];
      for (int64_t i = first_of(t); i < first_of(t + 1); ++i) {
        const Bits bits = magnitude_of(row[i]);
        const bool is_taken = bits > largest.threshold || (bits == largest.threshold && equal < largest.missing);
        if (is_taken) {
          const int64_t place = above + (equal < largest.missing ? equal : largest.missing);
          out[place] = static_cast<T>(i);
          out[k + place] = row[i];
        }
        above += bits > largest.threshold;
        equal += bits == largest.threshold;
      }
    });
  }
};

}  // namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE
