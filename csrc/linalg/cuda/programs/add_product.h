// C ← α A Bᵀ + β C of FP32 matrices that are much larger than A and B: one pass over C at the memory's speed.
#pragma once

#include "linalg/cuda/programs/product_tile.h"
#include "linalg/cuda/runtime.h"

namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE {

// C [rows, cols], A [rows, depth] and B [cols, depth] of BF16, all with contiguous rows. Matrices and their rows begin
// at multiples of 16 bytes.
//
// A block has a tile of one C. It asks for its entries first, and multiplies meanwhile.
struct AddProduct {
  using Tile = ProductTile;
  static constexpr int threads = Tile::threads, blocks_at_once = 2;
  static constexpr int kRun = Tile::kRun, kAtOnce = 8;  // runs of a thread in flight
  static constexpr size_t shared_bytes = Tile::shared_bytes;

  MatrixOf<float> C;
  MatrixOf<BFloat16> A, B;
  int64_t rows, cols, depth;
  NumberOf alpha, beta;

  TORCHDION_HOST_DEVICE int64_t blocks_of_one() const { return Tile::tiles(rows, cols); }
  Work work(int64_t blocks) const {
    const int64_t count = blocks / blocks_of_one();
    return {count * (8 * rows * cols + 2 * depth * (rows + cols)), count * 2 * rows * cols * depth};
  }

  template <class Block>
  TORCHDION_DEVICE void operator()(Block block) const {
    const int64_t matrix = block.index() / blocks_of_one();
    const Tile::Place place = Tile::place(block.index() % blocks_of_one(), rows, cols);
    float* c = C.at(matrix) + place.row * C.stride + place.col;
    const BFloat16 *a = A.at(matrix) + place.row * A.stride, *b = B.at(matrix) + place.col * B.stride;
    Tile::prefetch(block, c, C.stride, place);
    update(block, c, Tile::multiply(block, a, A.stride, b, B.stride, depth, place), place);
  }

 private:
  template <class Block>
  TORCHDION_DEVICE void update(Block& block, float* c, const float* all_sums, const Tile::Place& place) const {
    using Entries = Run<float, kRun>;
    const float a = alpha.get(), b = beta.get();
    block.each([&](int t) {
      for (int first = 0; first < Tile::kRunsOfThread; first += kAtOnce) {
        Entries read[kAtOnce];
        TORCHDION_UNROLL
        for (int k = 0; k < kAtOnce; ++k) {
          const int i = Tile::row_of_run(t, first + k), j = Tile::col_of_run(t, first + k);
          if (place.has_run(i, j)) read[k] = *reinterpret_cast<const Entries*>(c + i * C.stride + j);
        }
        TORCHDION_UNROLL
        for (int k = 0; k < kAtOnce; ++k) {
          const int i = Tile::row_of_run(t, first + k), j = Tile::col_of_run(t, first + k);
          const float* sums = all_sums + i * Tile::kPaddedSums + j;
          if (place.has_run(i, j)) {
            TORCHDION_UNROLL
            for (int n = 0; n < kRun; ++n) read[k].entries[n] = a * sums[n] + b * read[k].entries[n];
            write_run(c + i * C.stride + j, read[k]);
          } else if (i < place.rows_left) {
            for (int n = 0; j + n < place.cols_left; ++n) {
              float& entry = c[i * C.stride + j + n];
              entry = a * sums[n] + b * entry;
            }
          }
        }
      }
    });
  }
};

}  // namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE
