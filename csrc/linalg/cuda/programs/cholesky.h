// Cholesky factors with their inverses, of many Gram matrices at once, kFactoredColumns columns (a panel) at a time.
// The elimination turns [H | N] into [Lᵀ | L⁻¹ N], with N = diag(noise). Panels that are done need no room in H and
// those to come none in N: both lie in one r×r matrix A. The panels' diagonal blocks are factored here, one thread
// block for each matrix, the rest is in batched products. The rules for columns without signal are those of
// linalg/cpu/cholesky_inverse.cpp, which explains them.
#pragma once

#include <cmath>

#include "linalg/cuda/launch.h"
#include "linalg/cuda/storage.h"

namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE {

inline constexpr int kFactoredColumns = 64;

// A ← D H D from H's lower triangle, where D is 1 / sqrt(diagonal), 0 for a zero column. noise: where it is below 0, as
// before a first pass, becomes the part of each column that is rounding, relative to its length, from `own` and `mean`
// (linalg::Noise); else it is absolute and becomes relative. scale ← length D / noise, where the length of the columns
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
  double own, mean;
  double largest;  // length D, that the factor can hold

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
      double relative = begins ? mean * sqrt(sums[0] / static_cast<double>(r)) : noise[place];
      relative *= scales[t];
      if (begins) relative = scales[t] == 0 ? 1 : relative > 1 ? 1 : relative < own ? own : relative;
      const double own_length = length_within(largest * sqrt(least[0]), 0x1p-120 * sqrt(sums[0]));
      if (row + t == 0) length[matrix] = own_length;
      const bool too_short = own_length * scales[t] > largest;
      if (too_short) relative = 1;
      noise[place] = static_cast<T>(relative > kLeastNoise ? relative : kLeastNoise);  // as A will hold it
      scale[place] = too_short ? 0 : own_length * scales[t] / noise[place];
    });
  }
};

// The diagonal block of columns first, first + 1, … of A, from which the columns to the left have been eliminated:
// `inverses` gets the inverse of its factor, and below that the same with zero rows for the columns whose elimination
// would spread noise. In A the block becomes diag(noise) and what is below it zero, where the products that follow put
// L⁻¹ diag(noise).
//
// Whether a column carries signal depends on the length of its row of that. The row is a combination of the block's
// rows in the columns to the left (what these explain, before this block's elimination) and of diag(noise)'s rows; so
// it is enough to carry their inner products S through the elimination.
template <class T>
struct FactorDiagonal {
  static constexpr int threads = 256;
  static constexpr int kWidth = kFactoredColumns;
  static constexpr int kStride = kWidth + 8 / sizeof(T);  // 16 neighbours in a column lie in banks of their own
  static constexpr size_t kSquare = kWidth * kStride * sizeof(T);
  static constexpr size_t shared_bytes = 2 * kSquare + 3 * kWidth * sizeof(T);

  T* A;  // [count, r, r]
  // [count, kWidth, kWidth]: S as the columns to the left begin it; not read where there are none.
  const T* inner_products;
  T* inverses;  // [count, 2 kWidth, kWidth]
  const double* noise;
  const double* scale;                  // [count, r]: 0 for a zero column
  double* rounding;                     // [count, r]: the noise of the columns that the factor makes
  const double* length;                 // [count]: theirs
  int64_t *without_signal, *in_margin;  // or null: linalg::SignalCounts
  int64_t r, first;
  T margin, least_pivot;

  // For the elimination: for each of w³/6 entries of the block's inverse a product and a sum, for each of w³/6 of D and
  // S four of each. A block is one matrix.
  Work work(int64_t blocks) const {
    const int64_t width = r - first < kWidth ? r - first : kWidth, triangle = width * (width + 1) / 2;
    const int64_t read = (first == 0 ? 1 : 2) * triangle, written = 2 * kWidth * kWidth + (r - first) * width;
    const int64_t of_columns = 3 * width * int64_t{sizeof(double)};  // noise, scale, rounding
    return {blocks * ((read + written) * int64_t{sizeof(T)} + of_columns), blocks * 5 * width * width * width / 3};
  }

  struct Shared {
    T* S;
    T* D;  // the block on and below the diagonal, the transpose of its inverse above
    // Of each column: 0 if it is zero; one over the root of its pivot, 0 without signal; 0 where no
    // later column is freed of it.
    T *length, *scale, *keep;
  };
  // A column when those before it have been eliminated: the squares of its length and of the part that is noise.
  struct Pivot {
    T square, noise;
    bool unclear, dead, in_margin;
  };

  template <class Block>
  TORCHDION_DEVICE void operator()(Block block) const {
    const int64_t matrix = block.index();
    const int width = static_cast<int>(r - first < kWidth ? r - first : kWidth);
    Shared memory;
    memory.S = block.template shared<T>();
    memory.D = block.template shared<T>(kSquare);
    memory.length = block.template shared<T>(2 * kSquare);
    memory.scale = memory.length + kWidth;
    memory.keep = memory.scale + kWidth;
    T *S = memory.S, *D = memory.D;

    block.each([&](int t) {
      for (int e = t; e < kWidth * kWidth; e += threads) {
        const int i = e / kWidth, k = e % kWidth;
        if (i >= width || k > i) continue;
        const double own = k == i ? noise[matrix * r + first + i] : 0;
        D[i * kStride + k] = A[(matrix * r + first + i) * r + first + k];
        S[i * kStride + k] =
            static_cast<T>(own * own) + (first == 0 ? T(0) : inner_products[(matrix * kWidth + i) * kWidth + k]);
        inverse(D, i, k) = k == i ? 1 : 0;
        if (k == i) memory.length[i] = scale[matrix * r + first + i] == 0 ? T(0) : T(1);
      }
    });
    for (int j = 0; j < width; ++j) {
      block.each([&](int t) { eliminate(t, j, width, memory); });
    }
    block.each([&](int t) {
      if (t >= width) return;
      const Pivot own = pivot(t, memory);
      const T root = sqrt(own.square);
      memory.scale[t] = own.dead ? T(0) : 1 / root;
      memory.keep[t] = own.unclear ? T(0) : T(1);
      rounding[matrix * r + first + t] = length[matrix] * (sqrt(own.noise < 0 ? T(0) : own.noise) / root);
      if (without_signal && own.dead) block.add(without_signal, 1);
      if (in_margin && own.in_margin) block.add(in_margin, 1);
    });
    block.each([&](int t) {
      for (int e = t; e < kWidth * kWidth; e += threads) {
        const int i = e / kWidth, k = e % kWidth;
        const bool inside = i < width && k <= i;
        const T entry = !inside ? T(0) : k < i ? inverse(D, i, k) * memory.scale[i] : memory.scale[i];
        T* own = inverses + 2 * matrix * kWidth * kWidth;
        own[e] = entry;
        own[kWidth * kWidth + e] = inside ? memory.keep[i] * entry : T(0);
      }
      for (int64_t e = t; e < (r - first) * kWidth; e += threads) {
        const int64_t i = e / kWidth, k = e % kWidth;
        if (k >= width) continue;
        A[(matrix * r + first + i) * r + first + k] = i == k ? static_cast<T>(noise[matrix * r + first + k]) : T(0);
      }
    });
  }

  static TORCHDION_DEVICE T& inverse(T* D, int i, int k) { return D[k * kStride + i + 1]; }

  // No elimination of column j or a later one changes it.
  TORCHDION_DEVICE Pivot pivot(int j, const Shared& block) const {
    const T square = block.D[j * kStride + j], noise = block.S[j * kStride + j];
    const bool unclear = square < least_pivot;
    const T length = unclear ? least_pivot : square;
    // Of a column that is all noise both are 1 but for rounding, which must not keep it.
    const bool absent = block.length[j] == 0, all_noise = noise >= T(0.9999) * length;
    const bool dead = absent || all_noise || margin * margin * noise >= T(0.9999) * length;
    return {length, noise, unclear, dead, dead && !absent && !all_noise && !unclear};
  }

  // Frees the rows after j of column j. Reads column j and row j, which no thread writes.
  TORCHDION_DEVICE void eliminate(int t, int j, int width, const Shared& block) const {
    T *S = block.S, *D = block.D;
    const Pivot own = pivot(j, block);
    if (own.unclear || own.dead) return;
    const T weight = 1 / own.square;  // L_ij = D_ij sqrt(weight)
    for (int i = j + 1 + t / 16; i < width; i += 16) {
      const T l = D[i * kStride + j] * weight;
      for (int k = t % 16; k <= i; k += 16) {
        if (k <= j) {
          inverse(D, i, k) -= l * inverse(D, j, k);
        } else {
          const T other = D[k * kStride + j] * weight;
          D[i * kStride + k] -= l * D[k * kStride + j];
          S[i * kStride + k] -= l * S[k * kStride + j] + other * S[i * kStride + j] - l * other * own.noise;
        }
      }
    }
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
