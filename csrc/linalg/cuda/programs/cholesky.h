// Cholesky factors with their inverses, of many Gram matrices at once, kFactoredColumns columns (a panel) at a time.
// The elimination turns [H | N] into [Lᵀ | L⁻¹ N], with N = diag(noise). Panels that are done need no room in H and
// those to come none in N: both lie in one r×r matrix A. The panels' diagonal blocks are factored by factor_diagonal.h,
// the rest is in batched products. The rules for columns without signal are those of
// linalg/cpu/cholesky_inverse.cpp, which explains them.
#pragma once

#include <cmath>

#include "linalg/cuda/launch.h"
#include "linalg/cuda/programs/factor_diagonal.h"
#include "linalg/cuda/storage.h"
#include "linalg/noise_model.h"

namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE {

// A ← D H D from H's lower triangle, where D is 1 / sqrt(diagonal), 0 for a zero column. noise: where it is below 0, as
// before a first pass, becomes the part of each column that is rounding, relative to its length, as linalg::Noise says;
// else it is absolute and becomes relative. scale ← length D / noise, where the length of the columns
// that the factor will make is 1, or less where `largest` would be exceeded; a column that is too short even so counts
// as noise. A block has one tile of the lower triangle.
template <class T>
struct Equilibrate {
  static constexpr int threads = 256, kTile = 32;
  static constexpr size_t kScales = 2 * threads * sizeof(double), kEntries = kScales + 2 * kTile * sizeof(double);
  static constexpr size_t shared_bytes = kEntries + kTile * (kTile + 1) * sizeof(T);
  // As good as none, but one can divide by it, and a T holds its square.
  static constexpr double kLeastNoise = sizeof(T) == sizeof(double) ? 0x1p-200 : 0x1p-40;
  const T* H;  // [count, r, r]
  T* A;        // [count, r, r]
  double* scale;
  double* noise;   // [count, r]
  double* length;  // [count]
  bool all_begin;  // as if noise were below 0 everywhere
  int64_t r;
  double own, mean, momentum, most_steps;  // linalg::Noise
  int64_t steps;
  const float* steps_before;  // or null
  double largest;             // length D, that the factor can hold

  int64_t blocks(int64_t count) const { return count * divide_up(r, kTile) * divide_up(r, kTile); }
  // A triangle is read and all of A written; of each column noise is read and written, scale written.
  Work work(int64_t blocks) const {
    const int64_t matrices = blocks / this->blocks(1), entries = r * (r + 1) / 2 + r * r;
    return {matrices * (entries * int64_t{sizeof(T)} + 3 * r * int64_t{sizeof(double)})};
  }

  template <class Block>
  TORCHDION_DEVICE void operator()(Block block) const {
    const int64_t tiles = divide_up(r, kTile), matrix = block.index() / (tiles * tiles);
    const int64_t row = block.index() / tiles % tiles * kTile, col = block.index() % tiles * kTile;
    if (col > row) return;
    const T* h = H + matrix * r * r;
    T* a = A + matrix * r * r;
    double* scales = block.template shared<double>(kScales);  // of the tile's rows, then of its columns
    T* tile = block.template shared<T>(kEntries);
    block.each([&](int t) {
      if (t < kTile) {
        scales[t] = scale_of(h, row + t);
      } else if (t < 2 * kTile) {
        scales[t] = scale_of(h, col + t - kTile);
      }
    });
    block.each([&](int t) {
      for (int e = t; e < kTile * kTile; e += threads) {
        const int i = e / kTile, k = e % kTile;
        if (row + i >= r || col + k > row + i) continue;
        tile[i * (kTile + 1) + k] = static_cast<T>(h[(row + i) * r + col + k] * scales[i] * scales[kTile + k]);
      }
    });
    block.each([&](int t) {
      for (int e = t; e < kTile * kTile; e += threads) {
        const int i = e / kTile, k = e % kTile;
        if (row + i < r && col + k <= row + i) a[(row + i) * r + col + k] = tile[i * (kTile + 1) + k];
        if (row + k < r && col + i < row + k) a[(col + i) * r + row + k] = tile[k * (kTile + 1) + i];
      }
    });
    if (col == row) store_scales(block, matrix, row, h, scales);
  }

  TORCHDION_DEVICE double noise_of_mean() const {
    const double taken = steps_before ? static_cast<double>(*steps_before) + 1 : static_cast<double>(steps);
    return mean_after(mean, momentum, taken, most_steps);
  }

  TORCHDION_DEVICE double scale_of(const T* h, int64_t j) const {
    const double square = j < r ? static_cast<double>(h[j * (r + 1)]) : 0;
    return square == 0 ? 0 : 1 / sqrt(square);
  }

  // A power of two, which changes no bit of a mantissa. Below `least`, long columns would be lost instead of short
  // ones.
  static TORCHDION_DEVICE double length_within(double bound, double least) {
    if (bound < least) bound = least;
    if (!(bound < 1)) return 1;
    int exponent = 0;
    frexp(bound, &exponent);
    return ldexp(0.5, exponent);
  }

  template <class Block>
  TORCHDION_DEVICE void store_scales(Block& block, int64_t matrix, int64_t row, const T* h,
                                     const double* scales) const {
    double *sums = block.template shared<double>(), *least = sums + threads;  // of squared lengths that are not zero
    block.each([&](int t) {
      sums[t] = 0;
      least[t] = 1;
      for (int64_t j = t; j < r; j += threads) {
        const double square = h[j * (r + 1)];
        sums[t] += square;
        if (square > 0 && square < least[t]) least[t] = square;
      }
    });
    for (int half = threads / 2; half > 0; half /= 2) {
      block.each([&](int t) {
        if (t >= half) return;
        sums[t] += sums[t + half];
        if (least[t + half] < least[t]) least[t] = least[t + half];
      });
    }
    block.each([&](int t) {
      if (t >= kTile || row + t >= r) return;
      const int64_t place = matrix * r + row + t;
      const bool begins = all_begin || noise[place] < 0;
      double relative = begins ? noise_of_mean() * sqrt(sums[0] / static_cast<double>(r)) : noise[place];
      relative *= scales[t];
      if (begins) relative = relative < own ? own : relative;
      if (scales[t] == 0 || relative > kLargestNoise) relative = kLargestNoise;
      const double own_length = length_within(largest * sqrt(least[0]), 0x1p-120 * sqrt(sums[0]));
      if (row + t == 0) length[matrix] = own_length;
      const bool too_short = own_length * scales[t] > largest;
      noise[place] = static_cast<T>(relative > kLeastNoise ? relative : kLeastNoise);  // as A will hold it
      scale[place] = too_short ? 0 : own_length * scales[t] / noise[place];
    });
  }
};

// factor ([count, r, r], upper triangular) ← diag(scale) N L⁻ᵀ, where of every panel's 2 kFactoredColumns rows the
// first half are L⁻¹ N's. With `rest`, in two parts that tensor cores read without rounding: their sum is the factor.
template <class T, class F>
struct StoreFactor {
  static constexpr int threads = 256, kTile = 32;
  static constexpr size_t shared_bytes = kTile * (kTile + 1) * sizeof(T);
  const T* panels;  // [count, panels · 2 kFactoredColumns, r]
  const double* scale;
  F* factor;
  F* rest;      // or null
  bool rounds;  // to what tensor cores read
  int64_t r;

  int64_t blocks(int64_t count) const { return count * divide_up(r, kTile) * divide_up(r, kTile); }
  Work work(int64_t blocks) const {
    const int64_t matrices = blocks / this->blocks(1), read = r * (r + 1) / 2 * int64_t{sizeof(T)};
    const int64_t written = r * r * int64_t{sizeof(F)} * (rest ? 2 : 1);
    return {matrices * (read + written + r * int64_t{sizeof(double)})};
  }

  template <class Block>
  TORCHDION_DEVICE void operator()(Block block) const {
    const int64_t tiles = (r + kTile - 1) / kTile, matrix = block.index() / (tiles * tiles);
    const int64_t row = block.index() / tiles % tiles * kTile, col = block.index() % tiles * kTile;  // of the factor
    T* tile = block.template shared<T>();
    block.each([&](int t) {
      for (int e = t; e < kTile * kTile; e += threads) {
        const int64_t j = col + e / kTile, i = row + e % kTile;  // along the rows of L⁻¹
        if (j < r && i < r) tile[e / kTile * (kTile + 1) + e % kTile] = panels[row_of_inverse(matrix, j) * r + i];
      }
    });
    block.each([&](int t) {
      for (int e = t; e < kTile * kTile; e += threads) {
        const int64_t i = row + e / kTile, j = col + e % kTile;  // along the rows of the factor
        if (i >= r || j >= r) continue;
        const double entry = i > j ? 0 : tile[e % kTile * (kTile + 1) + e / kTile] * scale[matrix * r + i];
        put((matrix * r + i) * r + j, entry);
      }
    });
  }

  TORCHDION_DEVICE int64_t row_of_inverse(int64_t matrix, int64_t j) const {
    const int64_t count = divide_up(r, kFactoredColumns);
    return (matrix * count + j / kFactoredColumns) * 2 * kFactoredColumns + j % kFactoredColumns;
  }

  TORCHDION_DEVICE void put(int64_t place, double entry) const {
    const F whole = static_cast<F>(entry);
    if (!rounds) {
      factor[place] = whole;
      return;
    }
    const F leading = static_cast<F>(round_mantissa<10>(static_cast<float>(whole)));
    factor[place] = leading;
    if (rest) rest[place] = static_cast<F>(round_mantissa<10>(static_cast<float>(whole - leading)));
  }
};

}  // namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE
