// A diagonal block of a Cholesky factor and its inverse; see factor_gram.h. The elimination runs in registers: what
// threads tell each other goes through shared memory, a line for each column.
#pragma once

#include <cmath>

#include "linalg/cuda/programs/block_product.h"
#include "linalg/noise_model.h"

namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE {

// What a factorization of one matrix is told and tells about columns.
struct ColumnNoise {
  const double* noise;                  // [r], relative to their length
  const double* scale;                  // [r]: 0 for a zero column
  double* rounding;                     // [r]: the noise of the columns that the factor makes
  const double* length;                 // theirs
  int64_t* live;                        // the columns so far that carry signal
  int64_t *without_signal, *in_margin;  // or null: linalg::SignalCounts
};

// Of `width` columns from `first` on of a matrix of r, of which the columns to the left have been eliminated: the
// inverse of the factor of the diagonal block, and which columns later ones may be freed of.
//
// The length of a column's row of L⁻¹ diag(noise) decides if it carries signal. The row is a combination of the block's
// rows in the columns to the left (what these explain, before this block's elimination) and of diag(noise)'s rows; so
// it is enough to carry their inner products S through the elimination.
template <class T>
struct FactorDiagonal {
  using Products = BlockProduct<T>;  // whose threads have the same entries
  static constexpr int kWidth = Products::kWidth, kSide = Products::kSide, kOwn = Products::kOwn;
  static constexpr size_t shared_bytes = 7 * kWidth * sizeof(T) + kWidth * sizeof(float);

  const T* block_of_A;      // at (first, first)
  int64_t stride;           // from one of its rows to the next
  const T* inner_products;  // [parts, kWidth, kWidth]: their sum is S as the columns to the left begin it
  int parts;
  T* inverse;  // [kWidth, kWidth], transposed
  T* keep;     // [kWidth]: 0 for columns whose elimination would spread noise, else 1
  ColumnNoise columns;
  int64_t first;
  int width;
  float rows, one_over_root_rows;  // of P
  T margin, least_pivot;

  // For the elimination: for each of w³/6 entries of the block's inverse a product and a sum, for each of w³/6 of D and
  // S four of each.
  static int64_t operations(int64_t width) { return 5 * width * width * width / 3; }

  // A thread has the rows row, row + kSide, … and of these the columns col, col + kSide, …, in registers.
  struct Own {
    T S[kOwn][kOwn];
    T D[kOwn][kOwn];  // right of the column that is eliminated the block, left of it the inverse below its diagonal
    float live;       // columns so far that carry signal
  };
  // What all threads read of the column j that is eliminated, and of those before it.
  struct Shared {
    T* line;      // of k < j the inverse's row j; 1; of k > j D's column j
    T* S_column;  // from j on
    // Squares of each column's length and of its noise, once the columns before it are eliminated.
    T *square, *noise;
    // length: 0 for a zero column, else 1. scale: 1/√pivot, 0 without signal. keep: 0 for columns that later ones are
    // not freed of.
    T *length, *scale, *keep;
    // The number of columns with signal before each column.
    float* live;
  };
  struct Pivot {
    T square, noise;
    bool unclear, dead, in_margin;
  };

  template <class Block>
  TORCHDION_DEVICE void operator()(Block block) const {
    T* memory = block.template shared<T>();
    const Shared shared{memory,
                        memory + kWidth,
                        memory + 2 * kWidth,
                        memory + 3 * kWidth,
                        memory + 4 * kWidth,
                        memory + 5 * kWidth,
                        memory + 6 * kWidth,
                        block.template shared<float>(7 * kWidth * sizeof(T))};
    typename Block::template Registers<Own> own;

    block.each([&](int t) {
      load(t, own[t]);
      if (t < width) shared.length[t] = columns.scale[first + t] == 0 ? T(0) : T(1);
    });
    static_assert(kOwn == 4, "one call for each");
    eliminate_columns<0>(block, shared, own);
    eliminate_columns<1>(block, shared, own);
    eliminate_columns<2>(block, shared, own);
    eliminate_columns<3>(block, shared, own);
    block.each([&](int t) {
      if (t >= width) return;
      const Pivot own_pivot = pivot(t, shared, shared.live[t]);
      if (t == width - 1) *columns.live = static_cast<int64_t>(shared.live[t]) + (own_pivot.dead ? 0 : 1);
      const T root = sqrt(own_pivot.square);
      shared.scale[t] = own_pivot.dead ? T(0) : 1 / root;
      shared.keep[t] = own_pivot.unclear ? T(0) : T(1);
      columns.rounding[first + t] = *columns.length * (sqrt(own_pivot.noise < 0 ? T(0) : own_pivot.noise) / root);
      if (columns.without_signal && own_pivot.dead) block.add(columns.without_signal, 1);
      if (columns.in_margin && own_pivot.in_margin) block.add(columns.in_margin, 1);
    });
    block.each([&](int t) { store(t, shared, own[t]); });
  }

  TORCHDION_DEVICE void load(int t, Own& own) const {
    own.live = first == 0 ? 0 : static_cast<float>(*columns.live);
    TORCHDION_UNROLL
    for (int a = 0; a < kOwn; ++a) {
      TORCHDION_UNROLL
      for (int b = 0; b < kOwn; ++b) {
        const int i = row_of(t, a), k = column_of(t, b);
        own.D[a][b] = own.S[a][b] = 0;
        if (i >= width || k > i) continue;
        const double at_diagonal = k == i ? columns.noise[first + i] : 0;
        T sum = static_cast<T>(at_diagonal * at_diagonal);
        for (int part = 0; part < parts; ++part) sum += inner_products[(part * kWidth + i) * kWidth + k];
        own.D[a][b] = block_of_A[i * stride + k];
        own.S[a][b] = sum;
      }
    }
  }

  TORCHDION_DEVICE void store(int t, const Shared& shared, const Own& own) const {
    TORCHDION_UNROLL
    for (int a = 0; a < kOwn; ++a) {
      TORCHDION_UNROLL
      for (int b = 0; b < kOwn; ++b) {
        const int i = row_of(t, a), k = column_of(t, b);
        const bool inside = i < width && k <= i;
        inverse[k * kWidth + i] = !inside ? T(0) : k < i ? own.D[a][b] * shared.scale[i] : shared.scale[i];
        if (k == 0) keep[i] = i < width ? shared.keep[i] : T(0);
      }
    }
  }

  static TORCHDION_DEVICE int row_of(int t, int a) { return Products::row_of(t, a); }
  static TORCHDION_DEVICE int column_of(int t, int b) { return Products::column_of(t, b); }

  // Columns B kSide, …: the number is a constant, so that what a thread owns lies in registers.
  template <int B, class Block, class Registers>
  TORCHDION_DEVICE void eliminate_columns(Block& block, const Shared& shared, Registers& own) const {
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
  TORCHDION_DEVICE Pivot pivot(int j, const Shared& shared, float live_before) const {
    const T square = shared.square[j], noise = shared.noise[j];
    const bool unclear = square < least_pivot;
    const T length = unclear ? least_pivot : square;
    const NoiseLeft<float> left = noise_left(rows, one_over_root_rows, live_before);
    const T longest = margin * left.longest, rms = left.rms;
    // A column that is as long as its noise but for rounding must not be kept by that.
    const bool absent = shared.length[j] == 0, dead = absent || longest * longest * noise >= T(0.9999) * length;
    return {length, noise, unclear, dead, dead && !absent && rms * rms * noise < T(0.9999) * length && !unclear};
  }

  // Frees the rows after j of column j, where it carries signal.
  template <int B>
  TORCHDION_DEVICE void eliminate(int t, int j, const Shared& shared, Own& own) const {
    const Pivot of_column = pivot(j, shared, own.live);
    if (t == 0) shared.live[j] = own.live;
    if (!of_column.dead) own.live += 1;
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

}  // namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE
