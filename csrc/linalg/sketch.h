#pragma once

#include <ATen/core/Tensor.h>

namespace torchdion::linalg {

// One infinite matrix of independent N(0, 1) entries for every (seed, stream): FP32 numbers, the same on every device,
// rounded to nearest in every dtype after they are scaled.
struct RandomMatrix {
  int64_t seed = 0;
  int64_t stream = 0;
  const float* steps_before = nullptr;  // in the memory of the device that draws: the stream is one more; or null

  // The sketch of optimizer step `step`, shared by all matrices of the step.
  static RandomMatrix sketch(int64_t seed, int64_t step) { return {seed, step}; }
  // The start of Q for matrix `index` of the stack that is parameter `parameter`; `draw`: of its factors which.
  static RandomMatrix start(int64_t seed, int64_t parameter, int64_t index, int64_t draw = 0) {
    const uint64_t of_draw = (uint64_t{1} << 63) + (uint64_t(draw) << 56);
    return {seed, static_cast<int64_t>(of_draw + (uint64_t(parameter) << 24) + uint64_t(index))};
  }
};

// out ([rows, cols] or [count, rows, cols], contiguous) ← standard_deviation · the block of `random` that begins at
// (row_offset, col_offset). Matrix i of a stack is of stream + i: where the first is start(seed, parameter, index), the
// others are those of the next indices. Any block equals the same block of a larger one bit for bit, and so does that
// of another device.
void sketch_(const at::Tensor& out, RandomMatrix random, int64_t row_offset, int64_t col_offset,
             double standard_deviation);

}  // namespace torchdion::linalg
