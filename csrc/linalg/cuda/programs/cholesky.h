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
  static constexpr int kWidth = kFactoredColumns, kSide = 16, threads = kSide * kSide;
  static constexpr int kOwn = kWidth / kSide;
  static constexpr int kClearedRows = 256;
  static constexpr size_t shared_bytes = 7 * kWidth * sizeof(T);

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

  // Of each matrix one block factors, and others clear the rows below.
  int64_t blocks(int64_t count) const { return count * blocks_of_matrix(); }

  // For the elimination: for each of w³/6 entries of the block's inverse a product and a sum, for each of w³/6 of D and
  // S four of each.
  Work work(int64_t blocks) const {
    const int64_t width = columns(), triangle = width * (width + 1) / 2;
    const int64_t read = (first == 0 ? 1 : 2) * triangle, written = 2 * kWidth * kWidth + (r - first) * width;
    const int64_t of_columns = 3 * width * int64_t{sizeof(double)};  // noise, scale, rounding
    const int64_t count = blocks / this->blocks(1);
    return {count * ((read + written) * int64_t{sizeof(T)} + of_columns), count * 5 * width * width * width / 3};
  }

  // A thread has the rows row, row + kSide, … and of these the columns col, col + kSide, …, in registers.
  struct Own {
    T S[kOwn][kOwn];
    T D[kOwn][kOwn];  // right of the column that is eliminated the block, left of it the inverse below its diagonal
  };
  // What all threads read of the column j that is eliminated, and of those before it.
  struct Shared {
    T* line;      // of k < j the inverse's row j; 1; of k > j D's column j
    T* S_column;  // from j on
    // Of each column when those before it have been eliminated: the squares of its length and of the part that is
    // noise.
    T *square, *noise;
    // Of each column: 0 if it is zero; one over the root of its pivot, 0 without signal; 0 where no
    // later column is freed of it.
    T *length, *scale, *keep;
  };
  struct Pivot {
    T square, noise;
    bool unclear, dead, in_margin;
  };

  template <class Block>
  TORCHDION_DEVICE void operator()(Block block) const {
    const int64_t matrix = block.index() / blocks_of_matrix(), below = block.index() % blocks_of_matrix();
    if (below > 0) {
      clear_rows(block, matrix, first + kWidth + (below - 1) * kClearedRows);
      return;
    }
    const int width = columns();
    T* memory = block.template shared<T>();
    const Shared shared{memory,
                        memory + kWidth,
                        memory + 2 * kWidth,
                        memory + 3 * kWidth,
                        memory + 4 * kWidth,
                        memory + 5 * kWidth,
                        memory + 6 * kWidth};
    typename Block::template Registers<Own> own;

    block.each([&](int t) {
      load(t, matrix, width, own[t]);
      if (t < width) shared.length[t] = scale[matrix * r + first + t] == 0 ? T(0) : T(1);
    });
    static_assert(kOwn == 4, "one call for each");
    eliminate_columns<0>(block, width, shared, own);
    eliminate_columns<1>(block, width, shared, own);
    eliminate_columns<2>(block, width, shared, own);
    eliminate_columns<3>(block, width, shared, own);
    block.each([&](int t) {
      if (t >= width) return;
      const Pivot own_pivot = pivot(t, shared);
      const T root = sqrt(own_pivot.square);
      shared.scale[t] = own_pivot.dead ? T(0) : 1 / root;
      shared.keep[t] = own_pivot.unclear ? T(0) : T(1);
      rounding[matrix * r + first + t] = length[matrix] * (sqrt(own_pivot.noise < 0 ? T(0) : own_pivot.noise) / root);
      if (without_signal && own_pivot.dead) block.add(without_signal, 1);
      if (in_margin && own_pivot.in_margin) block.add(in_margin, 1);
    });
    block.each([&](int t) { store(t, matrix, width, shared, own[t]); });
  }

  TORCHDION_HOST_DEVICE int columns() const { return static_cast<int>(r - first < kWidth ? r - first : kWidth); }

  TORCHDION_HOST_DEVICE int64_t blocks_of_matrix() const {
    return 1 + (r - first > kWidth ? divide_up(r - first - kWidth, kClearedRows) : 0);
  }

  template <class Block>
  TORCHDION_DEVICE void clear_rows(Block& block, int64_t matrix, int64_t row) const {
    const int64_t rows = r - row < kClearedRows ? r - row : kClearedRows;
    block.each([&](int t) {
      for (int64_t e = t; e < rows * kWidth; e += threads) {
        A[(matrix * r + row + e / kWidth) * r + first + e % kWidth] = 0;
      }
    });
  }

  TORCHDION_DEVICE void load(int t, int64_t matrix, int width, Own& own) const {
    TORCHDION_UNROLL
    for (int a = 0; a < kOwn; ++a) {
      TORCHDION_UNROLL
      for (int b = 0; b < kOwn; ++b) {
        const int i = row_of(t, a), k = column_of(t, b);
        own.D[a][b] = own.S[a][b] = 0;
        if (i >= width || k > i) continue;
        const double at_diagonal = k == i ? noise[matrix * r + first + i] : 0;
        own.D[a][b] = A[(matrix * r + first + i) * r + first + k];
        own.S[a][b] = static_cast<T>(at_diagonal * at_diagonal) +
                      (first == 0 ? T(0) : inner_products[(matrix * kWidth + i) * kWidth + k]);
      }
    }
  }

  TORCHDION_DEVICE void store(int t, int64_t matrix, int width, const Shared& shared, const Own& own) const {
    T* inverse = inverses + 2 * matrix * kWidth * kWidth;
    TORCHDION_UNROLL
    for (int a = 0; a < kOwn; ++a) {
      TORCHDION_UNROLL
      for (int b = 0; b < kOwn; ++b) {
        const int i = row_of(t, a), k = column_of(t, b);
        const bool inside = i < width && k <= i;
        const T entry = !inside ? T(0) : k < i ? own.D[a][b] * shared.scale[i] : shared.scale[i];
        inverse[i * kWidth + k] = entry;
        inverse[(kWidth + i) * kWidth + k] = inside ? shared.keep[i] * entry : T(0);
        if (i >= width || k >= width) continue;
        A[(matrix * r + first + i) * r + first + k] = i == k ? static_cast<T>(noise[matrix * r + first + k]) : T(0);
      }
    }
  }

  static TORCHDION_DEVICE int row_of(int t, int a) { return t / kSide + a * kSide; }
  static TORCHDION_DEVICE int column_of(int t, int b) { return t % kSide + b * kSide; }

  // Columns B kSide, …: the number is a constant, so that what a thread owns lies in registers.
  template <int B, class Block, class Registers>
  TORCHDION_DEVICE void eliminate_columns(Block& block, int width, const Shared& shared, Registers& own) const {
    for (int j = B * kSide; j < (B + 1) * kSide && j < width; ++j) {
      block.each([&](int t) { share<B>(t, j, own[t], shared); });
      block.each([&](int t) { eliminate<B>(t, j, shared, own[t]); });
    }
  }

  template <int B>
  static TORCHDION_DEVICE void share(int t, int j, const Own& own, const Shared& shared) {
    if (column_of(t, B) == j) {
      TORCHDION_UNROLL
      for (int a = B; a < kOwn; ++a) {
        const int i = row_of(t, a);
        if (i < j) continue;
        shared.line[i] = i == j ? T(1) : own.D[a][B];
        shared.S_column[i] = own.S[a][B];
        if (i == j) {
          shared.square[j] = own.D[a][B];
          shared.noise[j] = own.S[a][B];
        }
      }
    }
    if (row_of(t, B) == j) {
      TORCHDION_UNROLL
      for (int b = 0; b <= B; ++b) {
        if (column_of(t, b) < j) shared.line[column_of(t, b)] = own.D[B][b];
      }
    }
  }

  // No elimination of column j or a later one changes it.
  TORCHDION_DEVICE Pivot pivot(int j, const Shared& shared) const {
    const T square = shared.square[j], noise = shared.noise[j];
    const bool unclear = square < least_pivot;
    const T length = unclear ? least_pivot : square;
    // Of a column that is all noise both are 1 but for rounding, which must not keep it.
    const bool absent = shared.length[j] == 0, all_noise = noise >= T(0.9999) * length;
    const bool dead = absent || all_noise || margin * margin * noise >= T(0.9999) * length;
    return {length, noise, unclear, dead, dead && !absent && !all_noise && !unclear};
  }

  // Frees the rows after j of column j, where it carries signal.
  template <int B>
  TORCHDION_DEVICE void eliminate(int t, int j, const Shared& shared, Own& own) const {
    const Pivot of_column = pivot(j, shared);
    const T weight = of_column.unclear || of_column.dead ? T(0) : 1 / of_column.square;  // L_ij = D_ij sqrt(weight)
    T line[kOwn], S_column[kOwn], other[kOwn];
    TORCHDION_UNROLL
    for (int b = 0; b < kOwn; ++b) {
      const int k = column_of(t, b);
      const bool is_right = b > B || (b == B && k > j);
      line[b] = shared.line[k];
      other[b] = is_right ? line[b] * weight : T(0);
      S_column[b] = is_right ? shared.S_column[k] : T(0);
    }
    TORCHDION_UNROLL
    for (int a = B; a < kOwn; ++a) {
      const int i = row_of(t, a);
      if (i <= j) continue;
      const T l = shared.line[i] * weight, rest = shared.S_column[i] - l * of_column.noise;
      TORCHDION_UNROLL
      for (int b = 0; b <= a; ++b) {
        const bool is_own_column = b == B && column_of(t, b) == j;
        own.D[a][b] = (is_own_column ? T(0) : own.D[a][b]) - l * line[b];
        if (b >= B) own.S[a][b] -= l * S_column[b] + other[b] * rest;
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
