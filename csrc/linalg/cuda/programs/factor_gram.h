// Cholesky factors with their inverses, of many Gram matrices at once. The elimination turns [H | N] into
// [Lᵀ | L⁻¹ N], with N = diag(noise). Columns that are done need no room in H and those to come none in N: both lie in
// one r×r matrix A, where H was. The rules for columns without signal are those of linalg/cpu/cholesky_inverse.cpp,
// which explains them.
#pragma once

#include "linalg/cuda/launch.h"
#include "linalg/cuda/programs/block_product.h"
#include "linalg/cuda/programs/equilibrate_gram.h"
#include "linalg/cuda/programs/factor_diagonal.h"
#include "linalg/cuda/storage.h"

namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE {

// Columns of a Gram matrix that one launch factors; between two launches a product frees the others of them.
inline constexpr int64_t kFactoredColumns = 512;

// The columns first, first + 1, … of Gram matrices of T, whose factor is stored as F. A cluster has one matrix.
//
// EquilibrateGram prepares A where first = 0: its lower triangle is a Gram matrix then. Afterwards, 64 columns at a
// time, the rows of these columns in A become those of L⁻¹ N left of the diagonal, and of Lᵀ right of it: zero for
// columns that later ones are not freed of.
//
// Where the last columns are among them, factor ([count, r, r], upper triangular) ← diag(scale) N L⁻ᵀ. With `rest`, in
// two parts that tensor cores read without rounding: their sum is the factor.
template <class T, class F>
struct FactorGram {
  using Columns = EquilibrateGram<T>;
  using Products = BlockProduct<T>;
  using Diagonal = FactorDiagonal<T>;
  using Sums = typename Products::Sums;
  static constexpr int threads = Products::threads, ranks = Columns::ranks, kWidth = Products::kWidth;
  static constexpr int kSquare = Columns::kSquare, kPadded = Products::kPadded;
  static constexpr size_t kOfProducts = Products::shared_bytes, kOfDiagonal = Diagonal::shared_bytes;
  static constexpr size_t shared_bytes = kOfProducts > kOfDiagonal ? kOfProducts : kOfDiagonal;

  // Of each matrix, in entries of T: inner products from every rank, the inverse of a diagonal block, which of its
  // columns others are freed of, the longest row that every rank has seen, whether the matrix is nearly the identity.
  static constexpr int64_t kInverse = ranks * kSquare, kKeep = kInverse + kSquare, kLongest = kKeep + kWidth,
                           kSettled = kLongest + ranks, kScratch = kSettled + kWidth - ranks;

  T* A;        // [count, r, r]
  T* scratch;  // [count, kScratch]
  Columns columns;
  double* rounding;                     // [count, r]: the noise of the columns that the factor makes
  int64_t* live;                        // [count]
  int64_t *without_signal, *in_margin;  // or null: linalg::SignalCounts
  F *factor, *rest;                     // `rest` may be null
  int64_t r, first;
  T least_pivot;

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
    const int64_t factored = end() - first, triangle = r * (r + 1) / 2;
    const int64_t read = first == 0 ? triangle : factored * r, rows_between = is_last() ? 0 : factored * r;
    const int64_t written = is_last() ? r * r * int64_t{sizeof(F)} * (rest ? 2 : 1) : 0;
    const int64_t of_columns = 3 * factored * int64_t{sizeof(double)};
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
    if (first == 0) columns(cluster, matrix, a, own + kLongest, own + kSettled);
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
             ColumnNoise{columns.noise + begin, columns.scale + begin, rounding + begin, columns.length + matrix,
                         live + matrix, without_signal, in_margin},
             at,
             width,
             columns.rows,
             columns.one_over_root_rows,
             columns.margin,
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
    const double* own_noise = columns.noise + matrix * r;
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
          put((matrix * r + i) * r + j,
              i > j ? 0.0 : tile[e % kWidth * kPadded + e / kWidth] * columns.scale[matrix * r + i]);
        }
      });
    }
  }

  // D (I − the upper triangle of A).
  template <class Block>
  TORCHDION_DEVICE void store_settled(Block& block, int rank, int64_t matrix, const T* a) const {
    const double *d = columns.unit + matrix * r, own_length = columns.length[matrix];
    block.each([&](int t) {
      for (int64_t i = rank; i < r; i += ranks) {
        for (int64_t j = t; j < r; j += threads) {
          const double entry = i > j || d[j] == 0 ? 0 : i == j ? 1 : -static_cast<double>(a[i * r + j]);
          put((matrix * r + i) * r + j, entry * own_length * columns.shifted(matrix * r + i, d[i]));
        }
      }
      if (rank != 0) return;
      for (int64_t j = t; j < r; j += threads) {
        rounding[matrix * r + j] = own_length * columns.noise[matrix * r + j];
        if (without_signal && d[j] == 0) block.add(without_signal, 1);
      }
    });
  }

  TORCHDION_DEVICE void put(int64_t place, double entry) const {
    if (!rest) {
      store(factor[place], static_cast<ComputeType<F>>(entry));
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
