// 1 / σ, by a radix selection of the shortest quarter of a matrix's columns.
#pragma once

#include <cmath>

#include "linalg/cuda/programs/radix_select.h"
#include "linalg/rules/residual.h"

namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE {

// A block has one matrix. It finds the longest of the shortest quarter of the lengths that are not zero, and then the
// mean of that quarter.
template <class T>
struct ResidualScales {
  using Bits = Magnitude<double>::Bits;
  static constexpr int threads = RadixSelect<Bits>::threads;

  const double* squares;  // [count, cols]
  int64_t cols;
  double least;
  T* scales;  // [count]

  struct Shared {
    RadixSelect<Bits> longest_of_quarter;
    double of_threads[threads];
    double longest;
    int64_t present, nans, below;  // lengths that are not zero; those that are NaN; those under the threshold
  };
  static constexpr size_t shared_bytes = sizeof(Shared);

  Work work(int64_t blocks) const { return {blocks * (cols * int64_t{sizeof(double)} + int64_t{sizeof(T)})}; }

  template <class Block>
  TORCHDION_DEVICE void operator()(Block block) const {
    Shared& shared = *block.template shared<Shared>();
    count(block);
    if (shared.present == 0 || shared.nans > 0) {
      const T none = shared.nans > 0 ? static_cast<T>(NAN) : T(0);
      once(block, [&] { scales[block.index()] = none; });
      return;
    }
    shared.longest_of_quarter.find(block, cols, [&](int64_t col) { return magnitude_of(length(block.index(), col)); });
    average(block);
  }

 private:
  TORCHDION_DEVICE double length(int64_t matrix, int64_t col) const { return sqrt(squares[matrix * cols + col]); }

  template <class Block>
  TORCHDION_DEVICE void count(Block& block) const {
    Shared& shared = *block.template shared<Shared>();
    once(block, [&] { shared.present = shared.nans = shared.below = 0; });
    block.each([&](int t) {
      int64_t present = 0, nans = 0;
      double longest = 0;
      for (int64_t col = t; col < cols; col += threads) {
        const double own = length(block.index(), col);
        present += own != 0;
        nans += own != own;
        longest = own > longest ? own : longest;
      }
      block.add(&shared.present, present);
      block.add(&shared.nans, nans);
      shared.of_threads[t] = longest;
    });
    once(block, [&] {
      shared.longest = 0;
      for (int i = 0; i < threads; ++i) {
        if (shared.of_threads[i] > shared.longest) shared.longest = shared.of_threads[i];
      }
      shared.longest_of_quarter.begin(shared.present - quarter_of(shared.present) + 1);
    });
  }

  template <class Block>
  TORCHDION_DEVICE void average(Block& block) const {
    Shared& shared = *block.template shared<Shared>();
    block.each([&](int t) {
      double sum = 0;
      int64_t below = 0;
      for (int64_t col = t; col < cols; col += threads) {
        const double own = length(block.index(), col);
        if (magnitude_of(own) >= shared.longest_of_quarter.threshold) continue;
        sum += own;
        below += own != 0;
      }
      shared.of_threads[t] = sum;
      block.add(&shared.below, below);
    });
    once(block, [&] {
      const int64_t quarter = quarter_of(shared.present);
      double sum = static_cast<double>(quarter - shared.below) * number_of(shared.longest_of_quarter.threshold);
      for (int i = 0; i < threads; ++i) sum += shared.of_threads[i];
      scales[block.index()] = inverse_sigma<T>(sum / static_cast<double>(quarter), shared.longest, least);
    });
  }
};

}  // namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE
