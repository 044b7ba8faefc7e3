#include "linalg/sketch.h"

#include <ATen/Parallel.h>

#include <cmath>

#include "linalg/cpu/convert.h"
#include "linalg/philox.h"

namespace torchdion::linalg {

namespace {

// One Philox block makes the entries of four neighbouring columns.
constexpr int64_t kLanes = 4;

// Box–Muller on two pairs of uniforms.
std::array<float, kLanes> normals(RandomMatrix random, int64_t row, int64_t column_block) {
  const auto stream = static_cast<uint64_t>(random.stream);
  const std::array<uint32_t, 4> bits = philox({static_cast<uint32_t>(row), static_cast<uint32_t>(column_block),
                                               static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)},
                                              static_cast<uint64_t>(random.seed));
  std::array<float, kLanes> out;
  for (int pair = 0; pair < 2; ++pair) {
    const float uniform = (static_cast<float>(bits[2 * pair]) + 1) * 0x1p-32f;  // in (0, 1]
    const float angle = static_cast<float>(bits[2 * pair + 1]) * (0x1p-32f * 2 * static_cast<float>(M_PI));
    const float radius = std::sqrt(-2 * std::log(uniform));
    out[2 * pair] = radius * std::cos(angle);
    out[2 * pair + 1] = radius * std::sin(angle);
  }
  return out;
}

}  // namespace

void sketch_(const at::Tensor& out, RandomMatrix random, int64_t row_offset, int64_t col_offset,
             double standard_deviation) {
  const int64_t rows = out.size(0), cols = out.size(1);
  const int64_t first_block = col_offset / kLanes, skipped = col_offset % kLanes;
  const int64_t blocks = (skipped + cols + kLanes - 1) / kLanes;
  TORCHDION_DISPATCH_FLOATING(out.scalar_type(), "torchdion::sketch_", [&] {
    scalar_t* data = out.mutable_data_ptr<scalar_t>();
    at::parallel_for(0, rows, 4096 / std::max<int64_t>(1, cols) + 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        scalar_t* row = data + i * cols;
        for (int64_t block = 0; block < blocks; ++block) {
          const std::array<float, kLanes> entries = normals(random, row_offset + i, first_block + block);
          const int64_t start = block * kLanes - skipped;  // the first entry's column here
          for (int64_t j = std::max<int64_t>(0, -start); j < std::min(kLanes, cols - start); ++j) {
            row[start + j] = static_cast<scalar_t>(standard_deviation * entries[j]);
          }
        }
      }
    });
  });
}

}  // namespace torchdion::linalg
