// The random matrices of linalg/sketch.h.
#pragma once

#include "linalg/cuda/launch.h"
#include "linalg/cuda/storage.h"
#include "linalg/normals.h"

namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE {

struct SketchPlace {
  int64_t count, rows, cols, row_offset, col_offset;
  uint64_t seed, stream;
  const float* steps_before;  // or null
};

// out ([count, rows, cols]) ← standard_deviation · the blocks of random matrices that begin at these offsets: of
// `stream` and those after it. Where steps are counted on the device, the stream is the number of this one. One thread
// makes the entries of one Philox block, four neighbours in a row. The normals have the bits of the CPU's
// (linalg/normals.h); what follows is one product in FP64 and store(), which round to nearest, as cpu/sketch.cpp does.
template <class S>
struct Sketch {
  static constexpr int threads = 256;
  S* out;
  SketchPlace place;
  double standard_deviation;

  Work work(int64_t) const { return {place.count * place.rows * place.cols * int64_t{sizeof(S)}}; }

  TORCHDION_HOST_DEVICE int64_t blocks_of_row() const {
    return (place.col_offset % kNormalsOfBlock + place.cols + kNormalsOfBlock - 1) / kNormalsOfBlock;
  }

  template <class Block>
  TORCHDION_DEVICE void operator()(Block block) const {
    const int64_t rows = place.rows, cols = place.cols, col_offset = place.col_offset;
    block.each([&](int t) {
      const int64_t number = block.index() * threads + t, row = number / blocks_of_row();  // of the stack
      if (row >= place.count * rows) return;
      const int64_t skipped = col_offset % kNormalsOfBlock, column_block = number % blocks_of_row();
      const uint64_t first = place.steps_before ? static_cast<uint64_t>(*place.steps_before) + 1 : place.stream;
      const Normals entries = normals(place.seed, first + row / rows, place.row_offset + row % rows,
                                      col_offset / kNormalsOfBlock + column_block);
      for (int i = 0; i < kNormalsOfBlock; ++i) {
        const int64_t col = column_block * kNormalsOfBlock - skipped + i;
        if (col >= 0 && col < cols) store(out[row * cols + col], standard_deviation * entries.values[i]);
      }
    });
  }
};

}  // namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE
