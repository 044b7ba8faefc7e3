// C ← α (A Bᵀ + s L) + β C of FP32 matrices that are much larger than A and B: one pass over C and L at the memory's
// speed.
#pragma once

#include "linalg/cuda/programs/product_tile.h"
#include "linalg/cuda/runtime.h"
#include "linalg/rules/decay.h"

namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE {

// A second addend of each matrix, and how C moves.
template <class S>
struct AddendOf {
  MatrixOf<S> L;        // [rows, cols]
  const float* scales;  // one for each matrix; null where nothing is added
  DirectionRule rule;
};

// C [rows, cols], A [rows, depth] and B [cols, depth] of S (product_tile.h), all with contiguous rows. A, B and their
// rows begin at multiples of 16 bytes.
//
// A block has a tile of one C. It asks for its entries first, and multiplies meanwhile.
template <class S>
struct AddProduct {
  using Tile = ProductTile<S>;
  using Place = typename Tile::Place;
  static constexpr int threads = Tile::threads, blocks_at_once = 2;
  static constexpr int kRun = Tile::kRun, kAtOnce = 8;  // runs of a thread in flight
  static constexpr size_t shared_bytes = Tile::shared_bytes;

  MatrixOf<float> C;
  MatrixOf<S> A, B;
  int64_t rows, cols, depth;
  NumberOf alpha, beta;
  AddendOf<S> addend;

  TORCHDION_HOST_DEVICE int64_t blocks_of_one() const { return Tile::tiles(rows, cols); }
  Work work(int64_t blocks) const {
    const int64_t count = blocks / blocks_of_one(), size = sizeof(S), of_L = addend.scales ? size : 0;
    return {count * ((8 + of_L) * rows * cols + size * depth * (rows + cols)), count * 2 * rows * cols * depth};
  }

  template <class Block>
  TORCHDION_DEVICE void operator()(Block block) const {
    const int64_t matrix = block.index() / blocks_of_one();
    if (addend.rule.frozen.has(matrix)) return;
    const Place place = Tile::place(block.index() % blocks_of_one(), rows, cols);
    float* c = C.at(matrix, place.row, place.col);
    Tile::prefetch(block, c, C.stride, place);
    const S* l = nullptr;
    if (addend.scales) {
      l = addend.L.at(matrix, place.row, place.col);
      Tile::prefetch(block, l, addend.L.stride, place);
    }
    const float* sums = Tile::multiply(block, A, B, matrix, depth, place);
    if (l) {
      update<true>(block, c, l, addend.scales[matrix], sums, place);
    } else {
      update<false>(block, c, nullptr, 0, sums, place);
    }
  }

 private:
  template <bool adds, class Block>
  TORCHDION_DEVICE void update(Block& block, float* c, const S* l, float scale, const float* all_sums,
                               const Place& place) const {
    using Entries = Run<float, kRun>;
    using Addends = Run<S, kRun>;
    const float a = alpha.get(), b = beta.get();
    const int64_t l_stride = addend.L.stride;
    const bool runs = C.has_runs(c, kRun) && (!adds || addend.L.has_runs(l, kRun));
    DirectionRule rule;  // without signs, as the compiler should know
    rule.decay = addend.rule.decay;
    block.each([&](int t) {
      for (int first = 0; first < Tile::kRunsOfThread; first += kAtOnce) {
        Entries read[kAtOnce];
        Addends added[kAtOnce];
        TORCHDION_UNROLL
        for (int k = 0; k < kAtOnce; ++k) {
          const int i = Tile::row_of_run(t, first + k), j = Tile::col_of_run(t, first + k);
          if (!runs || !place.has_run(i, j)) continue;
          read[k] = *reinterpret_cast<const Entries*>(c + i * C.stride + j);
          if (adds) added[k] = *reinterpret_cast<const Addends*>(l + i * l_stride + j);
        }
        TORCHDION_UNROLL
        for (int k = 0; k < kAtOnce; ++k) {
          const int i = Tile::row_of_run(t, first + k), j = Tile::col_of_run(t, first + k);
          const float* sums = all_sums + i * Tile::kPaddedSums + j;
          if (runs && place.has_run(i, j)) {
            TORCHDION_UNROLL
            for (int n = 0; n < kRun; ++n) {
              const float direction = adds ? sums[n] + scale * load(added[k].entries[n]) : sums[n];
              read[k].entries[n] = moved(read[k].entries[n], direction, a, b, rule);
            }
            write_run(c + i * C.stride + j, read[k]);
          } else if (i < place.rows_left) {
            for (int n = 0; n < kRun && j + n < place.cols_left; ++n) {
              float& entry = c[i * C.stride + j + n];
              const float direction = adds ? sums[n] + scale * load(l[i * l_stride + j + n]) : sums[n];
              entry = moved(entry, direction, a, b, rule);
            }
          }
        }
      }
    });
  }
};

}  // namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE
