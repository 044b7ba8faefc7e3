// Gram matrices as a factorization needs them (factor_gram.h): of columns of unit length, with what of each is noise.
#pragma once

#include <cmath>

#include "linalg/cuda/launch.h"
#include "linalg/cuda/programs/block_product.h"
#include "linalg/cuda/programs/sums.h"
#include "linalg/noise_model.h"

namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE {

// The lower triangle of A, a Gram matrix, becomes D A D, and so does the upper one; D is 1 / sqrt(diagonal), 0 for a
// zero column. noise: before a first pass it becomes the part of each column that is rounding, relative to its length,
// as linalg::Noise says; else it is absolute and becomes relative. scale ← length D / noise, where the length of the
// columns that the factor will make is 1, or less where `largest` would be exceeded; a column that is too short even so
// counts as noise.
//
// A matrix is settled where no row of D A D without its diagonal entry is longer than `settled`, and every column that
// is not zero is signal for certain: an elimination decides about the others, which a first pass has left to it.
template <class T>
struct EquilibrateGram {
  using Products = BlockProduct<T>;
  static constexpr int threads = Products::threads, ranks = 8, kWidth = Products::kWidth, kPadded = Products::kPadded;
  static constexpr int kSquare = kWidth * kWidth;
  // As good as none, but one can divide by it, and a T holds its square.
  static constexpr double kLeastNoise = sizeof(T) == sizeof(double) ? 0x1p-200 : 0x1p-40;

  int64_t r;
  double *scale, *unit, *noise;  // [count, r]; unit: D
  const int *exponents, *shift;  // [count, r], or null: the columns were 2^exponent times as long, and are 2^shift
                                 // times as short as those that the factor is for
  double* length;                // [count]
  bool all_begin;                // a first pass
  Noise given;
  double largest;                  // length D, that the factor can hold
  double settled;                  // 0: no matrix is
  float rows, one_over_root_rows;  // of P
  T margin;

  // Equilibrates, and finds out whether the matrix is settled. For longest: `ranks` entries.
  template <class Cluster>
  TORCHDION_DEVICE void operator()(Cluster& cluster, int64_t matrix, T* a, T* longest, T* is_settled) const {
    cluster.each_rank([&](auto& block, int rank) {
      if (rank == 0) begin(block, matrix, a);
    });
    cluster.each_rank([&](auto& block, int rank) { equilibrate(block, rank, matrix, a); });
    if (all_begin || settled == 0) {
      cluster.each_rank([&](auto& block, int rank) {
        block.each([&](int t) {
          if (rank == 0 && t == 0) *is_settled = 0;
        });
      });
      return;
    }
    cluster.each_rank([&](auto& block, int rank) { find_longest_row(block, rank, a, longest); });
    cluster.each_rank([&](auto& block, int rank) {
      if (rank == 0) settle(block, matrix, longest, is_settled);
    });
  }

  // d, of a column as it came, for one as the factor is for.
  TORCHDION_DEVICE double shifted(int64_t place, double d) const { return times(d, shift, place, 1); }

 private:
  template <class Block>
  TORCHDION_DEVICE void settle(Block& block, int64_t matrix, const T* longest, T* is_settled) const {
    int *zeros = block.template shared<int>(), *unsure = zeros + threads;
    block.each([&](int t) {
      zeros[t] = unsure[t] = 0;
      for (int64_t j = t; j < r; j += threads) zeros[t] += unit[matrix * r + j] == 0 ? 1 : 0;
    });
    sum_of_threads(block, zeros);
    block.each([&](int t) {
      for (int64_t j = t; j < r; j += threads) {
        const int64_t place = matrix * r + j;
        const float before = j > zeros[0] ? static_cast<float>(j - zeros[0]) : 0.0f;  // at least so many are signal
        const double largest_left = margin * noise_left(rows, one_over_root_rows, before).longest;
        const bool is_signal = scale[place] != 0 && largest_left * noise[place] < 0.999;
        if (unit[place] != 0 && !is_signal) unsure[t] = 1;
      }
    });
    sum_of_threads(block, unsure);
    once(block, [&] {
      T of_all = 0;
      for (int i = 0; i < ranks; ++i) of_all = larger(of_all, longest[i]);
      *is_settled = unsure[0] == 0 && of_all <= static_cast<T>(settled * settled) ? T(1) : T(0);
    });
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

  // value · 2^(powers · power[place]).
  static TORCHDION_DEVICE double times(double value, const int* power, int64_t place, int powers) {
    return power ? ldexp(value, powers * power[place]) : value;
  }

  template <class Block>
  TORCHDION_DEVICE void begin(Block& block, int64_t matrix, const T* h) const {
    // Sums the squared lengths of P's columns and of the given ones, and finds the least of P's that is not zero.
    double *sums = block.template shared<double>(), *given_sums = sums + threads, *least = given_sums + threads;
    block.each([&](int t) {
      sums[t] = given_sums[t] = 0;
      least[t] = 1;
      for (int64_t j = t; j < r; j += threads) {
        const double square = times(h[j * (r + 1)], shift, matrix * r + j, -2);
        sums[t] += square;
        given_sums[t] += times(h[j * (r + 1)], exponents, matrix * r + j, 2);
        if (square > 0 && square < least[t]) least[t] = square;
      }
    });
    for (int half = threads / 2; half > 0; half /= 2) {
      block.each([&](int t) {
        if (t >= half) return;
        sums[t] += sums[t + half];
        given_sums[t] += given_sums[t + half];
        if (least[t + half] < least[t]) least[t] = least[t + half];
      });
    }
    block.each([&](int t) {
      const double own_length = length_within(largest * sqrt(least[0]), 0x1p-120 * sqrt(sums[0]));
      const double mean_square = given_sums[0] / static_cast<double>(r);
      if (t == 0) length[matrix] = own_length;
      for (int64_t j = t; j < r; j += threads) {
        const int64_t place = matrix * r + j;
        const double square = h[j * (r + 1)], d = square == 0 ? 0 : 1 / sqrt(square);
        double relative =
            all_begin ? given.total_mean() * sqrt(mean_square / times(square, exponents, place, 2)) : noise[place] * d;
        if (all_begin) relative = relative < given.own ? given.own : relative;
        if (d == 0 || relative > kLargestNoise) relative = kLargestNoise;
        const bool too_short = own_length * shifted(place, d) > largest;
        unit[place] = d;
        noise[place] = static_cast<T>(relative > kLeastNoise ? relative : kLeastNoise);  // as A will hold it
        scale[place] = too_short ? 0 : own_length * shifted(place, d) / noise[place];
      }
    });
  }

  template <class Block>
  TORCHDION_DEVICE void equilibrate(Block& block, int rank, int64_t matrix, T* a) const {
    T* tile = block.template shared<T>();
    const double* d = unit + matrix * r;
    int64_t number = 0;
    for (int64_t row = 0; row < r; row += kWidth) {
      for (int64_t col = 0; col <= row; col += kWidth) {
        if (number++ % ranks != rank) continue;
        block.each([&](int t) {
          for (int e = t; e < kSquare; e += threads) {
            const int64_t i = row + e / kWidth, k = col + e % kWidth;
            if (i < r && k <= i) tile[e / kWidth * kPadded + e % kWidth] = static_cast<T>(a[i * r + k] * d[i] * d[k]);
          }
        });
        block.each([&](int t) {
          for (int e = t; e < kSquare; e += threads) {
            const int i = e / kWidth, k = e % kWidth;
            if (row + i < r && col + k <= row + i) a[(row + i) * r + col + k] = tile[i * kPadded + k];
            if (row + k < r && col + i < row + k) a[(col + i) * r + row + k] = tile[k * kPadded + i];
          }
        });
      }
    }
  }

  // Squared, of the rows of a rank without their diagonal entries.
  template <class Block>
  TORCHDION_DEVICE void find_longest_row(Block& block, int rank, const T* a, T* longest) const {
    constexpr int kLanes = 16, kRows = threads / kLanes;
    T* sums = block.template shared<T>();
    typename Block::template Registers<T> own;
    block.each([&](int t) { own[t] = 0; });
    for (int64_t row = rank * kRows; row < r; row += ranks * kRows) {
      block.each([&](int t) {
        const int64_t i = row + t / kLanes;
        sums[t] = 0;
        for (int64_t k = t % kLanes; i < r && k < r; k += kLanes) {
          if (k != i) sums[t] += a[i * r + k] * a[i * r + k];
        }
      });
      block.each([&](int t) {
        if (t >= kRows) return;
        T sum = 0;
        for (int lane = 0; lane < kLanes; ++lane) sum += sums[t * kLanes + lane];
        own[t] = larger(own[t], sum);
      });
    }
    block.each([&](int t) { sums[t] = own[t]; });
    once(block, [&] {
      T found = 0;
      for (int i = 0; i < kRows; ++i) found = larger(found, sums[i]);
      longest[rank] = found;
    });
  }
};

}  // namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE
