// 128×128 entries of A Bᵀ on tensor cores, for kernels that do something with them beside a large matrix.
#pragma once

#include "linalg/cuda/launch.h"
#include "linalg/cuda/programs/elementwise.h"
#include "linalg/cuda/tensor_cores.h"

namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE {

// One matrix of each of a batch.
template <class S>
struct MatrixOf {
  S* data;
  int64_t step;       // from one to the next
  void* const* list;  // or null
  int64_t stride;     // from one row to the next

  TORCHDION_DEVICE S* at(int64_t i, int64_t row, int64_t col) const {
    return (list ? static_cast<S*>(list[i]) : data + i * step) + row * stride + col;
  }

  // True where runs of so many entries, from one in the matrix on, can be read and written at once.
  TORCHDION_DEVICE bool has_runs(const S* from, int run) const {
    return stride % run == 0 && reinterpret_cast<uintptr_t>(from) % (run * sizeof(S)) == 0;
  }
};

// A number of the host, or one that is read when the kernel runs.
struct NumberOf {
  float value;
  const float* device;  // or null

  TORCHDION_DEVICE float get() const { return device ? *device : value; }
};

// The products are of 128 bytes of the rows of A and B at a time, with those of the next on their way. A warp has 32×64
// of the sums. Operands are of S, BF16 or FP32, which tensor cores read as TF32; their rows begin at multiples of 16
// bytes.
template <class S>
struct ProductTile {
  static constexpr int threads = 256, kWarps = threads / 32;
  static constexpr int kSide = 128, kDepth = 128 / sizeof(S), kStages = 2;
  static constexpr int kWarpRows = 32, kWarpCols = 64, kLeft = kWarpRows / kPiece, kRight = kWarpCols / kPiece;
  static constexpr int kOfCopy = 16 / sizeof(S);             // entries that are copied at once
  static constexpr int kPadded = kDepth + kOfCopy;           // so that 8 rows of 16 bytes lie in different banks
  static constexpr int kPaddedSums = kSide + 8;              // the same of what a warp stores
  static constexpr int kRun = 4, kRunsOfRow = kSide / kRun;  // entries that are read and written at once
  static constexpr int kRunsOfThread = kSide * kRunsOfRow / threads;
  static constexpr size_t kOperand = kSide * kPadded, kOperands = kStages * 2 * kOperand * sizeof(S);
  static constexpr size_t kSums = kSide * kPaddedSums * sizeof(float);
  static constexpr size_t shared_bytes = kOperands > kSums ? kOperands : kSums;
  static_assert(kWarps * kWarpRows * kWarpCols == kSide * kSide, "warps have all sums");

  struct SumsOfWarp {
    SumPiece<S> pieces[kLeft][kRight];
  };
  // Where the tile lies in a matrix, and what is left of that from there on.
  struct Place {
    int64_t row, col, rows_left, cols_left;

    TORCHDION_DEVICE bool has_run(int i, int j) const { return i < rows_left && j + kRun <= cols_left; }
  };

  static TORCHDION_HOST_DEVICE int64_t across(int64_t cols) { return divide_up(cols, kSide); }
  static TORCHDION_HOST_DEVICE int64_t tiles(int64_t rows, int64_t cols) {
    return divide_up(rows, kSide) * across(cols);
  }
  static TORCHDION_DEVICE Place place(int64_t tile, int64_t rows, int64_t cols) {
    const int64_t row = tile / across(cols) * kSide, col = tile % across(cols) * kSide;
    return {row, col, rows - row, cols - col};
  }

  // Where the run of a thread lies in the tile.
  static TORCHDION_DEVICE int row_of_run(int t, int run) { return (t + run * threads) / kRunsOfRow; }
  static TORCHDION_DEVICE int col_of_run(int t, int run) { return (t + run * threads) % kRunsOfRow * kRun; }

  // Asks for the entries of the tile that a kernel reads later.
  template <class Block, class Entry>
  static TORCHDION_DEVICE void prefetch(Block& block, const Entry* c, int64_t stride, const Place& place) {
    constexpr int kSector = 32 / sizeof(Entry), kOfRow = kSide / kSector;  // 32 bytes, the least that a cache holds
    block.each([&](int t) {
      for (int e = t; e < kSide * kOfRow; e += threads) {
        const int i = e / kOfRow, j = e % kOfRow * kSector;
        if (i < place.rows_left && j < place.cols_left) block.prefetch(c + i * stride + j);
      }
    });
  }

  // The sums of one of the products in shared memory: row i of the tile begins at i · kPaddedSums.
  template <class Block>
  static TORCHDION_DEVICE float* multiply(Block& block, const MatrixOf<S>& A, const MatrixOf<S>& B, int64_t matrix,
                                          int64_t depth, const Place& place) {
    const ProductTile tile{A.at(matrix, place.row, 0),
                           B.at(matrix, place.col, 0),
                           A.stride,
                           B.stride,
                           depth,
                           place.rows_left,
                           place.cols_left};
    typename Block::template WarpRegisters<SumsOfWarp> sums;
    block.each_warp([&](int w) { clear(sums[w]); });
    for (int stage = 0; stage < kStages; ++stage) tile.begin_copies(block, stage);
    for (int64_t chunk = 0; chunk * kDepth < depth; ++chunk) {
      block.template wait_for_copies<kStages - 1>();
      block.each_warp([&](int w) { add_products(block, w, static_cast<int>(chunk % kStages), sums[w]); });
      tile.begin_copies(block, chunk + kStages);
    }
    block.template wait_for_copies<0>();
    float* all_sums = block.template shared<float>();
    block.each_warp([&](int w) { store(w, sums[w], all_sums); });
    return all_sums;
  }

  const S *a, *b;
  int64_t a_stride, b_stride, depth, rows_of_a, rows_of_b;

 private:
  // Begins to copy kDepth columns of A and B, from chunk · kDepth on, as far as there are any.
  template <class Block>
  TORCHDION_DEVICE void begin_copies(Block& block, int64_t chunk) const {
    constexpr int kOfRow = kDepth / kOfCopy;
    S* left = operands(block, static_cast<int>(chunk % kStages));
    block.each([&](int t) {
      for (int e = t; e < kSide * kOfRow; e += threads) {
        const int i = e / kOfRow, l = e % kOfRow * kOfCopy;
        const int64_t at = chunk * kDepth + l;
        if (chunk * kDepth >= depth) break;
        copy(block, left + i * kPadded + l, a, i * a_stride + at, i < rows_of_a && at < depth);
        copy(block, left + kOperand + i * kPadded + l, b, i * b_stride + at, i < rows_of_b && at < depth);
      }
    });
    block.end_copies();
  }

  template <class Block>
  static TORCHDION_DEVICE void copy(Block& block, S* shared, const S* from, int64_t place, bool is_there) {
    block.begin_copy(shared, is_there ? from + place : from, is_there);
  }

  template <class Block>
  static TORCHDION_DEVICE S* operands(Block& block, int stage) {
    return block.template shared<S>() + stage * 2 * kOperand;
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
    const S *left = operands(block, stage) + row_of(warp) * kPadded,
            *right = operands(block, stage) + kOperand + col_of(warp) * kPadded;
    TORCHDION_UNROLL
    for (int l = 0; l < kDepth; l += kPieceDepth<S>) {
      LeftPiece<S> of_a[kLeft];
      RightPiece<S> of_b[kRight];
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
};

}  // namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE
