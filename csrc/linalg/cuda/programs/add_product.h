// C ← α A Bᵀ + β C of FP32 matrices that are much larger than A and B: one pass over C at the memory's speed.
#pragma once

#include "linalg/cuda/launch.h"
#include "linalg/cuda/programs/elementwise.h"
#include "linalg/cuda/runtime.h"
#include "linalg/cuda/tensor_cores.h"

namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE {

// C [rows, cols], A [rows, depth] and B [cols, depth] of BF16, all with contiguous rows. Matrices and their rows begin
// at multiples of 16 bytes.
//
// A block has 128×128 entries of one C. It asks for them first, and meanwhile multiplies: of 64 columns of A and B at a
// time, with those of the next 64 on their way. A warp has 32×64 of the sums.
struct AddProduct {
  static constexpr int threads = 256, blocks_at_once = 2, kWarps = threads / 32;
  static constexpr int kSide = 128, kDepth = 64, kStages = 2;
  static constexpr int kWarpRows = 32, kWarpCols = 64, kLeft = kWarpRows / kPiece, kRight = kWarpCols / kPiece;
  static constexpr int kPadded = kDepth + 8;                 // so that 8 rows of 16 bytes lie in different banks
  static constexpr int kPaddedSums = kSide + 8;              // the same of what a warp stores
  static constexpr int kRun = 4, kRunsOfRow = kSide / kRun;  // entries of C that are read and written at once
  static constexpr int kAtOnce = 8;                          // runs of a thread in flight
  static constexpr size_t kOperand = kSide * kPadded, kOperands = kStages * 2 * kOperand * sizeof(BFloat16);
  static constexpr size_t kSums = kSide * kPaddedSums * sizeof(float);
  static constexpr size_t shared_bytes = kOperands > kSums ? kOperands : kSums;
  static_assert(kWarps * kWarpRows * kWarpCols == kSide * kSide, "warps have all sums");

  // One matrix of each of a batch.
  template <class S>
  struct Of {
    S* data;
    int64_t step;       // from one to the next
    void* const* list;  // or null
    int64_t stride;     // from one row to the next

    TORCHDION_DEVICE S* at(int64_t i) const { return list ? static_cast<S*>(list[i]) : data + i * step; }
  };
  struct Number {
    float value;
    const float* device;  // or null

    TORCHDION_DEVICE float get() const { return device ? *device : value; }
  };
  struct SumsOfWarp {
    SumPiece pieces[kLeft][kRight];
  };

  Of<float> C;
  Of<BFloat16> A, B;
  int64_t rows, cols, depth;
  Number alpha, beta;

  TORCHDION_HOST_DEVICE int64_t across() const { return divide_up(cols, kSide); }
  TORCHDION_HOST_DEVICE int64_t blocks_of_one() const { return divide_up(rows, kSide) * across(); }
  Work work(int64_t blocks) const {
    const int64_t count = blocks / blocks_of_one();
    return {count * (8 * rows * cols + 2 * depth * (rows + cols)), count * 2 * rows * cols * depth};
  }

  template <class Block>
  TORCHDION_DEVICE void operator()(Block block) const {
    const int64_t matrix = block.index() / blocks_of_one(), tile = block.index() % blocks_of_one();
    const int64_t row = tile / across() * kSide, col = tile % across() * kSide;
    float* c = C.at(matrix) + row * C.stride + col;
    const BFloat16 *a = A.at(matrix) + row * A.stride, *b = B.at(matrix) + col * B.stride;
    prefetch(block, c, rows - row, cols - col);
    typename Block::template WarpRegisters<SumsOfWarp> sums;
    block.each_warp([&](int w) { clear(sums[w]); });
    for (int stage = 0; stage < kStages; ++stage) begin_copies(block, a, b, rows - row, cols - col, stage);
    for (int64_t chunk = 0; chunk * kDepth < depth; ++chunk) {
      block.template wait_for_copies<kStages - 1>();
      block.each_warp([&](int w) { add_products(block, w, static_cast<int>(chunk % kStages), sums[w]); });
      begin_copies(block, a, b, rows - row, cols - col, chunk + kStages);
    }
    block.template wait_for_copies<0>();
    float* all_sums = block.template shared<float>();
    block.each_warp([&](int w) { store(w, sums[w], all_sums); });
    update(block, c, all_sums, rows - row, cols - col);
  }

 private:
  template <class Block>
  TORCHDION_DEVICE void prefetch(Block& block, const float* c, int64_t rows_left, int64_t cols_left) const {
    constexpr int kSector = 8, kOfRow = kSide / kSector;  // 32 bytes, the least that a cache holds
    block.each([&](int t) {
      for (int e = t; e < kSide * kOfRow; e += threads) {
        const int i = e / kOfRow, j = e % kOfRow * kSector;
        if (i < rows_left && j < cols_left) block.prefetch(c + i * C.stride + j);
      }
    });
  }

  // Begins to copy kDepth columns of A and B, from chunk · kDepth on, as far as there are any.
  template <class Block>
  TORCHDION_DEVICE void begin_copies(Block& block, const BFloat16* a, const BFloat16* b, int64_t rows_of_a,
                                     int64_t rows_of_b, int64_t chunk) const {
    constexpr int kEntries = 8, kOfRow = kDepth / kEntries;
    BFloat16* left = operands(block, static_cast<int>(chunk % kStages));
    block.each([&](int t) {
      for (int e = t; e < kSide * kOfRow; e += threads) {
        const int i = e / kOfRow, l = e % kOfRow * kEntries;
        const int64_t at = chunk * kDepth + l;
        if (chunk * kDepth >= depth) break;
        copy(block, left + i * kPadded + l, a, i * A.stride + at, i < rows_of_a && at < depth);
        copy(block, left + kOperand + i * kPadded + l, b, i * B.stride + at, i < rows_of_b && at < depth);
      }
    });
    block.end_copies();
  }

  template <class Block>
  static TORCHDION_DEVICE void copy(Block& block, BFloat16* shared, const BFloat16* from, int64_t place,
                                    bool is_there) {
    block.begin_copy(shared, is_there ? from + place : from, is_there);
  }

  template <class Block>
  static TORCHDION_DEVICE BFloat16* operands(Block& block, int stage) {
    return block.template shared<BFloat16>() + stage * 2 * kOperand;
  }

  static TORCHDION_DEVICE int row_of(int warp) { return warp % (kSide / kWarpRows) * kWarpRows; }
  static TORCHDION_DEVICE int col_of(int warp) { return warp / (kSide / kWarpRows) * kWarpCols; }

  static TORCHDION_DEVICE void clear(SumsOfWarp& sums) {
    TORCHDION_UNROLL
    for (int i = 0; i < kLeft; ++i) {
      TORCHDION_UNROLL
      for (int j = 0; j < kRight; ++j) sums.pieces[i][j].clear();
    }
  }

  template <class Block>
  static TORCHDION_DEVICE void add_products(Block& block, int warp, int stage, SumsOfWarp& sums) {
    const BFloat16 *left = operands(block, stage) + row_of(warp) * kPadded,
                   *right = operands(block, stage) + kOperand + col_of(warp) * kPadded;
    TORCHDION_UNROLL
    for (int l = 0; l < kDepth; l += kPiece) {
      LeftPiece of_a[kLeft];
      RightPiece of_b[kRight];
      TORCHDION_UNROLL
      for (int i = 0; i < kLeft; ++i) of_a[i].load(left + i * kPiece * kPadded + l, kPadded);
      TORCHDION_UNROLL
      for (int j = 0; j < kRight; ++j) of_b[j].load(right + j * kPiece * kPadded + l, kPadded);
      TORCHDION_UNROLL
      for (int i = 0; i < kLeft; ++i) {
        TORCHDION_UNROLL
        for (int j = 0; j < kRight; ++j) sums.pieces[i][j].add_product(of_a[i], of_b[j]);
      }
    }
  }

  static TORCHDION_DEVICE void store(int warp, const SumsOfWarp& sums, float* all_sums) {
    float* own = all_sums + row_of(warp) * kPaddedSums + col_of(warp);
    TORCHDION_UNROLL
    for (int i = 0; i < kLeft; ++i) {
      TORCHDION_UNROLL
      for (int j = 0; j < kRight; ++j) {
        sums.pieces[i][j].store(own + i * kPiece * kPaddedSums + j * kPiece, kPaddedSums);
      }
    }
  }

  template <class Block>
  TORCHDION_DEVICE void update(Block& block, float* c, const float* all_sums, int64_t rows_left,
                               int64_t cols_left) const {
    using Entries = Run<float, kRun>;
    const float a = alpha.get(), b = beta.get();
    const auto is_whole = [&](int i, int j) { return i < rows_left && j + kRun <= cols_left; };
    block.each([&](int t) {
      for (int first = t; first < kSide * kRunsOfRow; first += kAtOnce * threads) {
        Entries read[kAtOnce];
        TORCHDION_UNROLL
        for (int k = 0; k < kAtOnce; ++k) {
          const int e = first + k * threads, i = e / kRunsOfRow, j = e % kRunsOfRow * kRun;
          if (is_whole(i, j)) read[k] = *reinterpret_cast<const Entries*>(c + i * C.stride + j);
        }
        TORCHDION_UNROLL
        for (int k = 0; k < kAtOnce; ++k) {
          const int e = first + k * threads, i = e / kRunsOfRow, j = e % kRunsOfRow * kRun;
          const float* sums = all_sums + i * kPaddedSums + j;
          if (is_whole(i, j)) {
            TORCHDION_UNROLL
            for (int n = 0; n < kRun; ++n) read[k].entries[n] = a * sums[n] + b * read[k].entries[n];
            write_run(c + i * C.stride + j, read[k]);
          } else if (i < rows_left) {
            for (int n = 0; j + n < cols_left; ++n) {
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
