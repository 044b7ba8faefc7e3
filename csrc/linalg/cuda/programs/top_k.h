// What has the largest magnitudes of a row, by a radix selection of their threshold.
#pragma once

#include "linalg/cuda/programs/radix_select.h"

namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE {

// A block has one row. It finds the k-th largest magnitude, and then takes what is above it, and of what equals it the
// first, in the order of places.
//
// Of a row, `Row` has magnitude(i), take(place, i) for what is the place-th of the k, and leave(i) for what is none.
template <class Row, class Bits>
struct Largest {
  static constexpr int threads = RadixSelect<Bits>::threads;

  struct Shared {
    RadixSelect<Bits> of_largest;
    int64_t above[threads], equal[threads];  // of each thread's entries; then of those before it
  };

  template <class Block>
  static TORCHDION_DEVICE void take(Block& block, const Row& row, int64_t size, int64_t k) {
    Shared& shared = *block.template shared<Shared>();
    once(block, [&] { shared.of_largest.begin(k); });
    shared.of_largest.find(block, size, [&](int64_t i) { return row.magnitude(i); });
    count(block, row, size);
    write(block, row, size);
  }

 private:
  // Entries of thread t: those of neighbouring places, so that counts of threads are in the order of places.
  static TORCHDION_DEVICE int64_t first_of(int t, int64_t size) { return size * t / threads; }

  template <class Block>
  static TORCHDION_DEVICE void count(Block& block, const Row& row, int64_t size) {
    Shared& shared = *block.template shared<Shared>();
    block.each([&](int t) {
      int64_t above = 0, equal = 0;
      for (int64_t i = first_of(t, size); i < first_of(t + 1, size); ++i) {
        const Bits bits = row.magnitude(i);
        above += bits > shared.of_largest.threshold;
        equal += bits == shared.of_largest.threshold;
      }
      shared.above[t] = above;
      shared.equal[t] = equal;
    });
    once(block, [&] {
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
  static TORCHDION_DEVICE void write(Block& block, const Row& row, int64_t size) {
    Shared& shared = *block.template shared<Shared>();
    const auto& largest = shared.of_largest;
    block.each([&](int t) {
      int64_t above = shared.above[t], equal = shared.equal[t];
      for (int64_t i = first_of(t, size); i < first_of(t + 1, size); ++i) {
        const Bits bits = row.magnitude(i);
        if (bits > largest.threshold || (bits == largest.threshold && equal < largest.missing)) {
          row.take(above + (equal < largest.missing ? equal : largest.missing), i);
        } else {
          row.leave(i);
        }
        above += bits > largest.threshold;
        equal += bits == largest.threshold;
      }
    });
  }
};

// The places and values of entries (linalg/top_k.h).
template <class T>
struct TopK {
  using Bits = typename Magnitude<T>::Bits;

  struct Row {
    const T* entries;
    T *places, *values;

    TORCHDION_DEVICE Bits magnitude(int64_t i) const { return magnitude_of(entries[i]); }
    TORCHDION_DEVICE void take(int64_t place, int64_t i) const {
      places[place] = static_cast<T>(i);
      values[place] = entries[i];
    }
    TORCHDION_DEVICE void leave(int64_t) const {}
  };
  using Taken = Largest<Row, Bits>;
  static constexpr int threads = Taken::threads;
  static constexpr size_t shared_bytes = sizeof(typename Taken::Shared);

  const T* entries;
  T* chosen;
  int64_t size, k;

  Work work(int64_t blocks) const { return {blocks * (size + 2 * k) * int64_t{sizeof(T)}}; }

  template <class Block>
  TORCHDION_DEVICE void operator()(Block block) const {
    T* places = chosen + block.index() * 2 * k;
    Taken::take(block, Row{entries + block.index() * size, places, places + k}, size, k);
  }
};

// Rows by their norms (linalg/top_k.h).
struct ChooseRows {
  using Bits = Magnitude<double>::Bits;

  struct Row {
    const double* norms;
    int32_t *rows, *slots;

    TORCHDION_DEVICE Bits magnitude(int64_t i) const { return leading_bits_of(norms[i]); }
    TORCHDION_DEVICE void take(int64_t place, int64_t i) const {
      rows[place] = static_cast<int32_t>(i);
      slots[i] = static_cast<int32_t>(place);
    }
    TORCHDION_DEVICE void leave(int64_t i) const { slots[i] = -1; }
  };
  using Taken = Largest<Row, Bits>;
  static constexpr int threads = Taken::threads;
  static constexpr size_t shared_bytes = sizeof(Taken::Shared);

  const double* norms;
  int32_t *rows, *slots;
  int64_t size, k;

  Work work(int64_t blocks) const {
    return {blocks * (size * int64_t{sizeof(double) + sizeof(int32_t)} + k * int64_t{sizeof(int32_t)})};
  }

  template <class Block>
  TORCHDION_DEVICE void operator()(Block block) const {
    const int64_t matrix = block.index();
    Taken::take(block, Row{norms + matrix * size, rows + matrix * k, slots + matrix * size}, size, k);
  }
};

}  // namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE
