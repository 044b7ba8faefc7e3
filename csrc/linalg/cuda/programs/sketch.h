// The random matrices of linalg/sketch.h.
#pragma once

#include "linalg/cuda/launch.h"
#include "linalg/cuda/storage.h"
#include "linalg/normals.h"

namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE {

// out ([rows, cols]) ← standard_deviation · the block of the random matrix that begins at these offsets. One thread
// makes the entries of one Philox block, four neighbours in a row. Where steps are counted on the device,
// the stream is the number of this one.
template <class S>
struct Sketch {
  static constexpr int threads = 256;
  S* out;
  int64_t rows, cols, row_offset, col_offset;
  uint64_t seed, stream;
  const float* steps_before;  // or null
  double standard_deviation;

  TORCHDION_HOST_DEVICE int64_t blocks_of_row() const {
    return (col_offset % kNormalsOfBlock + cols + kNormalsOfBlock - 1) / kNormalsOfBlock;
  }

  template <class Block>
  TORCHDION_DEVICE void operator()(Block block) const {
    block.each([&](int t) {
      const int64_t number = block.index() * threads + t, row = number / blocks_of_row();
      if (row >= rows) return;
      const int64_t skipped = col_offset % kNormalsOfBlock, column_block = number % blocks_of_row();
      const uint64_t number_of_step = steps_before ? static_cast<uint64_t>(*steps_before) + 1 : stream;
      const Normals entries =
          normals(seed, number_of_step, row_offset + row, col_offset / kNormalsOfBlock + column_block);
      for (int i = 0; i < kNormalsOfBlock; ++i) {
        const int64_t col = column_block * kNormalsOfBlock - skipped + i;
        if (col >= 0 && col < cols) store(out[row * cols + col], standard_deviation * entries.values[i]);
      }
    });
  }
};

}  // namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE
