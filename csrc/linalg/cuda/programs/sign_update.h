// X ← keep X + update (P₂ Vᵀ + weight · sign(L − P₁ Rᵀ)) and M ← M − feedback P₁ Rᵀ: one pass over X, M and L.
#pragma once

#include "linalg/cuda/programs/product_tile.h"
#include "linalg/cuda/runtime.h"
#include "linalg/rules/decay.h"

namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE {

// X and M [rows, cols] of FP32, L as these, P₁ and P₂ [rows, depth], R and V [cols, depth] of S (product_tile.h), all
// with contiguous rows. Factors and their rows begin at multiples of 16 bytes. L may be M.
//
// A block has a tile of one X. From P₁ Rᵀ it updates that of M and keeps the signs of what is left of L, two bits for
// each entry in the registers of a thread; from P₂ Vᵀ and these it updates that of X.
template <class S>
struct SignUpdate {
  using Tile = ProductTile<S>;
  using Place = typename Tile::Place;
  static constexpr int threads = Tile::threads, blocks_at_once = 2;
  static constexpr int kRun = Tile::kRun, kAtOnce = 4;  // runs of a thread in flight
  static constexpr size_t shared_bytes = Tile::shared_bytes;

  MatrixOf<float> X, M;
  MatrixOf<S> L, P1, R, P2, V;
  int64_t rows, cols, depth;
  const float* factors;  // update and keep
  DirectionRule rule;    // of X
  float weight, feedback;
  FloorOfSigns floor;

  TORCHDION_HOST_DEVICE int64_t blocks_of_one() const { return Tile::tiles(rows, cols); }
  Work work(int64_t blocks) const {
    const int64_t count = blocks / blocks_of_one(), of_M = feedback != 0 ? 8 : 0;
    const int64_t size = sizeof(S), of_L = of_M > 0 && L.list == M.list ? 0 : size;
    return {count * ((8 + of_M + of_L) * rows * cols + (2 * size * depth + 8) * (rows + cols)),
            count * 4 * rows * cols * depth};
  }

  template <class Block>
  TORCHDION_DEVICE void operator()(Block block) const {
    const int64_t matrix = block.index() / blocks_of_one();
    const Place place = Tile::place(block.index() % blocks_of_one(), rows, cols);
    float *x = X.at(matrix, place.row, place.col), *m = feedback != 0 ? M.at(matrix, place.row, place.col) : nullptr;
    const S* l = L.at(matrix, place.row, place.col);
    Tile::prefetch(block, l, L.stride, place);
    if (m) Tile::prefetch(block, m, M.stride, place);
    typename Block::template Registers<Signs> signs;
    take_signs(block, l, m, Tile::multiply(block, P1, R, matrix, depth, place), matrix, place, signs);
    if (rule.frozen.has(matrix)) return;
    Tile::prefetch(block, x, X.stride, place);
    move(block, x, Tile::multiply(block, P2, V, matrix, depth, place), place, signs);
  }

 private:
  static_assert(Tile::threads % Tile::kRunsOfRow == 0, "runs of a thread lie below one another");

  // Of a thread's entries in their order; both bits: NaN.
  struct Signs {
    uint64_t above = 0, below = 0;

    TORCHDION_DEVICE void set(int entry, float sign) {
      const uint64_t bit = uint64_t{1} << entry;
      if (!(sign <= 0)) above |= bit;
      if (!(sign >= 0)) below |= bit;
    }
    TORCHDION_DEVICE float get(int entry) const {
      const bool is_above = above >> entry & 1, is_below = below >> entry & 1;
      if (is_above && is_below) return NAN;
      return is_above ? 1.0F : is_below ? -1.0F : 0.0F;
    }
  };
  static_assert(Tile::kRunsOfThread * kRun == 64, "a word has a bit for each of a thread's entries");

  // `least`: what the rounding of factors may leave there.
  TORCHDION_DEVICE float sign(float whole, float part, float least) const {
    return sign_above(whole - part, static_cast<float>(floor.of_entries) * (fabsf(whole) + fabsf(part)) + least);
  }

  template <class Block>
  TORCHDION_DEVICE void take_signs(Block& block, const S* l, float* m, const float* all_sums, int64_t matrix,
                                   const Place& place, typename Block::template Registers<Signs>& signs) const {
    using OfL = Run<S, kRun>;
    using OfM = Run<float, kRun>;
    const bool runs = L.has_runs(l, kRun) && (!m || M.has_runs(m, kRun));
    block.each([&](int t) {
      Signs own;
      float of_cols[kRun];  // all runs of a thread lie below one another
      TORCHDION_UNROLL
      for (int n = 0; n < kRun; ++n) {
        const int64_t col = Tile::col_of_run(t, 0) + n;
        of_cols[n] = col < place.cols_left ? floor.right_of<float>(matrix * cols + place.col + col) : 0;
      }
      for (int first = 0; first < Tile::kRunsOfThread; first += kAtOnce) {
        OfL of_l[kAtOnce];
        OfM of_m[kAtOnce];
        TORCHDION_UNROLL
        for (int k = 0; k < kAtOnce; ++k) {
          const int i = Tile::row_of_run(t, first + k), j = Tile::col_of_run(t, first + k);
          if (!runs || !place.has_run(i, j)) continue;
          of_l[k] = *reinterpret_cast<const OfL*>(l + i * L.stride + j);
          if (m) of_m[k] = *reinterpret_cast<const OfM*>(m + i * M.stride + j);
        }
        TORCHDION_UNROLL
        for (int k = 0; k < kAtOnce; ++k) {
          const int i = Tile::row_of_run(t, first + k), j = Tile::col_of_run(t, first + k);
          const float* sums = all_sums + i * Tile::kPaddedSums + j;
          const float of_row = i < place.rows_left ? floor.left_of<float>(matrix * rows + place.row + i) : 0;
          if (runs && place.has_run(i, j)) {
            TORCHDION_UNROLL
            for (int n = 0; n < kRun; ++n) {
              own.set((first + k) * kRun + n, sign(load(of_l[k].entries[n]), sums[n], of_row * of_cols[n]));
              of_m[k].entries[n] -= feedback * sums[n];
            }
            if (m) write_run(m + i * M.stride + j, of_m[k]);
          } else if (i < place.rows_left) {
            for (int n = 0; n < kRun && j + n < place.cols_left; ++n) {
              own.set((first + k) * kRun + n, sign(load(l[i * L.stride + j + n]), sums[n], of_row * of_cols[n]));
              if (m) m[i * M.stride + j + n] -= feedback * sums[n];
            }
          }
        }
      }
      signs[t] = own;
    });
  }

  template <class Block>
  TORCHDION_DEVICE void move(Block& block, float* x, const float* all_sums, const Place& place,
                             typename Block::template Registers<Signs>& signs) const {
    using Entries = Run<float, kRun>;
    const float update = factors[0], keep = factors[1];
    DirectionRule without_signs;  // as the compiler should know
    without_signs.decay = rule.decay;
    const bool runs = X.has_runs(x, kRun);
    block.each([&](int t) {
      const Signs own = signs[t];
      for (int first = 0; first < Tile::kRunsOfThread; first += kAtOnce) {
        Entries read[kAtOnce];
        TORCHDION_UNROLL
        for (int k = 0; k < kAtOnce; ++k) {
          const int i = Tile::row_of_run(t, first + k), j = Tile::col_of_run(t, first + k);
          if (runs && place.has_run(i, j)) read[k] = *reinterpret_cast<const Entries*>(x + i * X.stride + j);
        }
        TORCHDION_UNROLL
        for (int k = 0; k < kAtOnce; ++k) {
          const int i = Tile::row_of_run(t, first + k), j = Tile::col_of_run(t, first + k);
          const float* sums = all_sums + i * Tile::kPaddedSums + j;
          const auto moved_by = [&](float entry, int n) {
            return moved(entry, sums[n] + weight * own.get((first + k) * kRun + n), update, keep, without_signs);
          };
          if (runs && place.has_run(i, j)) {
            TORCHDION_UNROLL
            for (int n = 0; n < kRun; ++n) read[k].entries[n] = moved_by(read[k].entries[n], n);
            write_run(x + i * X.stride + j, read[k]);
          } else if (i < place.rows_left) {
            for (int n = 0; n < kRun && j + n < place.cols_left; ++n) {
              float& entry = x[i * X.stride + j + n];
              entry = moved_by(entry, n);
            }
          }
        }
      }
    });
  }
};

}  // namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE
