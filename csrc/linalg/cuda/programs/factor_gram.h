// Cholesky factors with their inverses, of many Gram matrices at once. The elimination turns [H | N] into
// [Lᵀ | L⁻¹ N], with N = diag(noise). Columns that are done need no room in H and those to come none in N: both lie in
// one r×r matrix A, where H was. The rules for columns without signal are those of linalg/cpu/cholesky_inverse.cpp,
// which explains them.
#pragma once

#include <cmath>

#include "linalg/cuda/launch.h"
#include "linalg/cuda/programs/block_product.h"
#include "linalg/cuda/programs/factor_diagonal.h"
#include "linalg/cuda/storage.h"
#include "linalg/noise_model.h"

namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE {

// Columns of a Gram matrix that one launch factors; between two launches a product frees the others of them.
inline constexpr int64_t kFactoredColumns = 512;

// What is known of columns before a first pass: linalg/noise.h.
struct GivenNoise {
  double own, mean, momentum, most_steps;
  int64_t steps;
  const float* steps_before;  // or null

  TORCHDION_DEVICE double of_mean() const {
    const double taken = steps_before ? static_cast<double>(*steps_before) + 1 : static_cast<double>(steps);
    return mean_after(mean, momentum, taken, most_steps);
  }
};

// The columns first, first + 1, … of Gram matrices of T, whose factor is stored as F. A cluster has one matrix.
//
// Where first = 0, the lower triangle of A is a Gram matrix, which becomes D A D, D being 1 / sqrt(diagonal), 0 for a
// zero column. noise: where it is below 0, as before a first pass, becomes the part of each column that is rounding,
// relative to its length, as linalg::Noise says; else it is absolute and becomes relative. scale ← length D / noise,
// where the length of the columns that the factor will make is 1, or less where `largest` would be exceeded; a column
// that is too short even so counts as noise.
//
// Then, 64 columns at a time, the rows of these columns in A become those of L⁻¹ N left of the diagonal, and of Lᵀ
// right of it: zero for columns that later ones are not freed of.
//
// Where the last columns are among them, factor ([count, r, r], upper triangular) ← diag(scale) N L⁻ᵀ. With `rest`, in
// two parts that tensor cores read without rounding: their sum is the factor.
template <class T, class F>
struct FactorGram {
  using Products = BlockProduct<T>;
  using Diagonal = FactorDiagonal<T>;
  using Sums = typename Products::Sums;
  static constexpr int threads = Products::threads, ranks = 8, kWidth = Products::kWidth, kPadded = Products::kPadded;
  static constexpr int kSquare = kWidth * kWidth;
  static constexpr size_t kOfProducts = Products::shared_bytes, kOfDiagonal = Diagonal::shared_bytes;
  static constexpr size_t shared_bytes = kOfProducts > kOfDiagonal ? kOfProducts : kOfDiagonal;
  // As good as none, but one can divide by it, and a T holds its square.
  static constexpr double kLeastNoise = sizeof(T) == sizeof(double) ? 0x1p-200 : 0x1p-40;

  // Of each matrix, in entries of T: inner products from every rank, the inverse of a diagonal block, which of its
  // columns others are freed of, the longest row that every rank has seen, whether the matrix is nearly the identity.
  static constexpr int64_t kInverse = ranks * kSquare, kKeep = kInverse + kSquare, kLongest = kKeep + kWidth,
                           kSettled = kLongest + ranks, kScratch = kSettled + kWidth - ranks;

  T* A;        // [count, r, r]
  T* scratch;  // [count, kScratch]
  double *scale, *unit, *noise,
      *rounding;                        // [count, r]; unit: D; rounding: the noise of the columns that the factor makes
  const int *exponents, *shift;         // [count, r], or null: the columns were 2^exponent times as long, and are
                                        // 2^shift times as short as those that the factor is for
  double* length;                       // [count]
  int64_t* live;                        // [count]
  int64_t *without_signal, *in_margin;  // or null: linalg::SignalCounts
  F *factor, *rest;                     // `rest` may be null
  bool all_begin;                       // as if noise were below 0 everywhere
  int64_t r, first;
  GivenNoise given;
  double largest;  // length D, that the factor can hold
  // Off-diagonal rows of D A D that are no longer than this settle a matrix that has been through a pass: the inverse
  // of its factor is I − (its upper triangle) but for the square of that.
  double settled;
  float rows, one_over_root_rows;  // of P
  T margin, least_pivot;

  TORCHDION_HOST_DEVICE int64_t end() const { return first + kFactoredColumns < r ? first + kFactoredColumns : r; }
  TORCHDION_HOST_DEVICE bool is_last() const { return end() == r; }

  // As many as there is work for: of few columns most ranks have none.
  unsigned blocks_of_cluster() const {
    unsigned blocks = 1;
    while (blocks < ranks && blocks * kWidth < r) blocks *= 2;
    return blocks;
  }

  // A triangle is read and another one written; between launches rows lie in memory. Of each column noise is read and
  // written, scale written.
  Work work(int64_t count) const {
    const int64_t columns = end() - first, triangle = r * (r + 1) / 2;
    const int64_t read = first == 0 ? triangle : columns * r, rows_between = is_last() ? 0 : columns * r;
    const int64_t written = is_last() ? r * r * int64_t{sizeof(F)} * (rest ? 2 : 1) : 0;
    const int64_t of_columns = 3 * columns * int64_t{sizeof(double)};
    int64_t operations = 0;
    for (int64_t a = first; a < end(); a += kWidth) {
      const int64_t width = a + kWidth < r ? kWidth : r - a;
      const int64_t below = end() - a - width, right = r - a - width;
      operations += Diagonal::operations(width) + width * width * a + width * width * (a + right);
      operations += 2 * width * below * (a + width) + width * below * (2 * right - below);
    }
    return {count * ((read + rows_between) * int64_t{sizeof(T)} + written + of_columns), count * operations};
  }

  template <class Cluster>
  TORCHDION_DEVICE void operator()(Cluster cluster) const {
    const int64_t matrix = cluster.index();
    T *a = A + matrix * r * r, *own = scratch + matrix * kScratch;
    if (first == 0) {
      begin(cluster, matrix, a, own);
    }
    if (own[kSettled] != 0) {
      if (is_last()) cluster.each_rank([&](auto& block, int rank) { store_settled(block, rank, matrix, a); });
      return;
    }
    for (int64_t at = first; at < end(); at += kWidth) {
      const int width = static_cast<int>(at + kWidth < r ? kWidth : r - at);
      if (at > 0) {
        cluster.each_rank([&](auto& block, int rank) { sum_inner_products(block, rank, a, own, at, width); });
      }
      cluster.each_rank([&](auto& block, int rank) {
        if (rank == 0) factor_diagonal(block, matrix, a, own, at, width);
      });
      cluster.each_rank([&](auto& block, int rank) { multiply_rows(block, rank, matrix, a, own, at, width); });
      if (at + width < end()) {
        cluster.each_rank([&](auto& block, int rank) { eliminate(block, rank, a, at, width); });
      }
    }
    cluster.each_rank([&](auto& block, int rank) {
      if (is_last()) {
        store_factor(block, rank, matrix, a);
      } else {
        clear_columns(block, rank, a);
      }
    });
  }

 private:
  TORCHDION_DEVICE int64_t tiles() const { return divide_up(r, kWidth); }

  // Equilibrates, and finds out whether the matrix is settled.
  template <class Cluster>
  TORCHDION_DEVICE void begin(Cluster& cluster, int64_t matrix, T* a, T* own) const {
    cluster.each_rank([&](auto& block, int rank) {
      if (rank == 0) begin_columns(block, matrix, a);
    });
    cluster.each_rank([&](auto& block, int rank) { equilibrate(block, rank, matrix, a); });
    if (all_begin || settled == 0) {
      cluster.each_rank([&](auto& block, int rank) {
        block.each([&](int t) {
          if (rank == 0 && t == 0) own[kSettled] = 0;
        });
      });
      return;
    }
    cluster.each_rank([&](auto& block, int rank) { find_longest_row(block, rank, a, own); });
    cluster.each_rank([&](auto& block, int rank) {
      if (rank == 0) settle(block, matrix, own);
    });
  }

  // An elimination decides about columns that may be noise: a first pass has left those to it that it did not see
  // clearly.
  template <class Block>
  TORCHDION_DEVICE void settle(Block& block, int64_t matrix, T* own) const {
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
        const double longest = margin * noise_left(rows, one_over_root_rows, before).longest;
        const bool is_signal = scale[place] != 0 && longest * noise[place] < 0.999;
        if (unit[place] != 0 && !is_signal) unsure[t] = 1;
      }
    });
    sum_of_threads(block, unsure);
    block.each([&](int t) {
      if (t != 0) return;
      T longest = 0;
      for (int i = 0; i < ranks; ++i) longest = larger(longest, own[kLongest + i]);
      own[kSettled] = unsure[0] == 0 && longest <= static_cast<T>(settled * settled) ? T(1) : T(0);
    });
  }

  template <class Block>
  static TORCHDION_DEVICE void sum_of_threads(Block& block, int* counts) {
    for (int half = threads / 2; half > 0; half /= 2) {
      block.each([&](int t) {
        if (t < half) counts[t] += counts[t + half];
      });
    }
  }

  // NaN is larger than any number.
  static TORCHDION_DEVICE T larger(T a, T b) { return a != a || b <= a ? a : b; }

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

  TORCHDION_DEVICE double shifted(int64_t place, double d) const { return times(d, shift, place, 1); }

  template <class Block>
  TORCHDION_DEVICE void begin_columns(Block& block, int64_t matrix, const T* h) const {
    // Of the squared lengths of P's columns and of the given ones, and the least of P's that is not zero.
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
        const bool begins = all_begin || noise[place] < 0;
        double relative =
            begins ? given.of_mean() * sqrt(mean_square / times(square, exponents, place, 2)) : noise[place] * d;
        if (begins) relative = relative < given.own ? given.own : relative;
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
  TORCHDION_DEVICE void find_longest_row(Block& block, int rank, const T* a, T* own) const {
    constexpr int kLanes = 16, kRows = threads / kLanes;
    T* sums = block.template shared<T>();
    typename Block::template Registers<T> longest;
    block.each([&](int t) { longest[t] = 0; });
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
        longest[t] = larger(longest[t], sum);
      });
    }
    block.each([&](int t) { sums[t] = longest[t]; });
    block.each([&](int t) {
      if (t != 0) return;
      T found = 0;
      for (int i = 0; i < kRows; ++i) found = larger(found, sums[i]);
      own[kLongest + rank] = found;
    });
  }

  // Of the rows `at`, at + 1, … in the columns to the left: this rank's part of the terms.
  template <class Block>
  TORCHDION_DEVICE void sum_inner_products(Block& block, int rank, const T* a, T* own, int64_t at, int width) const {
    T* chunk = Products::left(block.template shared<char>());
    typename Block::template Registers<Sums> sums;
    block.each([&](int t) { Products::clear(sums[t]); });
    for (int64_t col = int64_t{rank} * kWidth; col < at; col += int64_t{ranks} * kWidth) {
      block.each([&](int t) {
        for (int e = t; e < kSquare; e += threads) {
          const int i = e / kWidth, l = e % kWidth;
          chunk[l * kPadded + i] = i < width ? a[(at + i) * r + col + l] : T(0);
        }
      });
      block.each([&](int t) { Products::add(t, chunk, chunk, kWidth, sums[t]); });
    }
    block.each([&](int t) {
      Products::each(t, sums[t], [&](int i, int k, T sum) { own[(rank * kWidth + i) * kWidth + k] = sum; });
    });
  }

  template <class Block>
  TORCHDION_DEVICE void factor_diagonal(Block& block, int64_t matrix, const T* a, T* own, int64_t at, int width) const {
    const int64_t begin = matrix * r;
    Diagonal{a + at * (r + 1),
             r,
             own,
             at > 0 ? ranks : 0,
             own + kInverse,
             own + kKeep,
             ColumnNoise{noise + begin, scale + begin, rounding + begin, length + matrix, live + matrix, without_signal,
                         in_margin},
             at,
             width,
             rows,
             one_over_root_rows,
             margin,
             least_pivot}(block);
  }

  // The rows of the block's columns ← its inverse times them; right of it, zero for columns that others are not freed
  // of. In its own columns they are diag(noise) before.
  template <class Block>
  TORCHDION_DEVICE void multiply_rows(Block& block, int rank, int64_t matrix, T* a, const T* own, int64_t at,
                                      int width) const {
    char* memory = block.template shared<char>();
    T *inverse = Products::left(memory), *entries = Products::right(memory);
    const T *given = own + kInverse, *keep = own + kKeep;
    const double* own_noise = noise + matrix * r;
    typename Block::template Registers<Sums> sums;
    block.each([&](int t) {
      for (int e = t; e < kSquare; e += threads) inverse[e / kWidth * kPadded + e % kWidth] = given[e];
    });
    for (int64_t tile = rank; tile < tiles(); tile += ranks) {
      const int64_t col = tile * kWidth;
      if (col == at) {
        block.each([&](int t) {
          for (int e = t; e < width * width; e += threads) {
            const int i = e / width, k = e % width;
            a[(at + i) * r + at + k] = inverse[k * kPadded + i] * static_cast<T>(own_noise[at + k]);
          }
        });
        continue;
      }
      block.each([&](int t) {
        for (int e = t; e < kSquare; e += threads) {
          const int l = e / kWidth, k = e % kWidth;
          entries[l * kPadded + k] = l < width && col + k < r ? a[(at + l) * r + col + k] : T(0);
        }
      });
      block.each([&](int t) {
        Products::clear(sums[t]);
        Products::add(t, inverse, entries, width, sums[t]);
        Products::each(t, sums[t], [&](int i, int k, T sum) {
          if (i < width && col + k < r) a[(at + i) * r + col + k] = col < at || keep[i] != 0 ? sum : T(0);
        });
      });
    }
  }

  // Frees the later rows of this launch of the block's columns: left of its end, and from their diagonal on.
  template <class Block>
  TORCHDION_DEVICE void eliminate(Block& block, int rank, T* a, int64_t at, int width) const {
    char* memory = block.template shared<char>();
    T *left = Products::left(memory), *right = Products::right(memory);
    typename Block::template Registers<Sums> sums;
    int64_t number = 0;
    for (int64_t row = at + width; row < end(); row += kWidth) {
      for (int64_t col = 0; col < r; col += kWidth) {
        if ((col > at && col < row) || number++ % ranks != rank) continue;
        block.each([&](int t) {
          for (int e = t; e < kSquare; e += threads) {
            const int l = e / kWidth, k = e % kWidth;
            left[l * kPadded + k] = l < width && row + k < r ? a[(at + l) * r + row + k] : T(0);
            right[l * kPadded + k] = l < width && col + k < r ? a[(at + l) * r + col + k] : T(0);
          }
        });
        block.each([&](int t) {
          Products::clear(sums[t]);
          Products::add(t, left, right, width, sums[t]);
          Products::each(t, sums[t], [&](int i, int k, T sum) {
            if (row + i >= end() || col + k >= r) return;
            T& entry = a[(row + i) * r + col + k];
            entry = (col == at ? T(0) : entry) - sum;
          });
        });
      }
    }
  }

  // In these columns the rows below have nothing of L⁻¹ N yet, and nothing of Lᵀ is to be subtracted from them.
  template <class Block>
  TORCHDION_DEVICE void clear_columns(Block& block, int rank, T* a) const {
    block.each([&](int t) {
      for (int64_t i = first + rank; i < r; i += ranks) {
        const int64_t begin = i < end() ? i / kWidth * kWidth + kWidth : first;
        for (int64_t k = begin + t; k < end(); k += threads) a[i * r + k] = 0;
      }
    });
  }

  template <class Block>
  TORCHDION_DEVICE void store_factor(Block& block, int rank, int64_t matrix, const T* a) const {
    T* tile = block.template shared<T>();
    for (int64_t number = rank; number < tiles() * tiles(); number += ranks) {
      const int64_t row = number / tiles() * kWidth, col = number % tiles() * kWidth;  // of the factor
      block.each([&](int t) {
        for (int e = t; e < kSquare; e += threads) {
          const int64_t j = col + e / kWidth, i = row + e % kWidth;  // along the rows of L⁻¹
          if (j < r && i <= j) tile[e / kWidth * kPadded + e % kWidth] = a[j * r + i];
        }
      });
      block.each([&](int t) {
        for (int e = t; e < kSquare; e += threads) {
          const int64_t i = row + e / kWidth, j = col + e % kWidth;  // along the rows of the factor
          if (i >= r || j >= r) continue;
          put((matrix * r + i) * r + j, i > j ? 0.0 : tile[e % kWidth * kPadded + e / kWidth] * scale[matrix * r + i]);
        }
      });
    }
  }

  // D (I − the upper triangle of A).
  template <class Block>
  TORCHDION_DEVICE void store_settled(Block& block, int rank, int64_t matrix, const T* a) const {
    const double *d = unit + matrix * r, own_length = length[matrix];
    block.each([&](int t) {
      for (int64_t i = rank; i < r; i += ranks) {
        for (int64_t j = t; j < r; j += threads) {
          const double entry = i > j || d[j] == 0 ? 0 : i == j ? 1 : -static_cast<double>(a[i * r + j]);
          put((matrix * r + i) * r + j, entry * own_length * shifted(matrix * r + i, d[i]));
        }
      }
      if (rank != 0) return;
      for (int64_t j = t; j < r; j += threads) {
        rounding[matrix * r + j] = own_length * noise[matrix * r + j];
        if (without_signal && d[j] == 0) block.add(without_signal, 1);
      }
    });
  }

  TORCHDION_DEVICE void put(int64_t place, double entry) const {
    if (!rest) {
      store(factor[place], static_cast<typename ComputeType<F>::type>(entry));
      return;
    }
    const float whole = static_cast<float>(entry), leading = nearest(whole);
    store(factor[place], leading);
    store(rest[place], nearest(whole - leading));
  }

  static TORCHDION_DEVICE float nearest(float value) {
    return sizeof(F) == 2 ? round_mantissa<7>(value) : round_mantissa<10>(value);
  }
};

}  // namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE
