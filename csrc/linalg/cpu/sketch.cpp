#include "linalg/cpu/operations.h"

#include <ATen/Parallel.h>

#include "linalg/cpu/convert.h"
#include "linalg/normals.h"

namespace torchdion::linalg::cpu {

void Operations::sketch_(const at::Tensor& out, RandomMatrix random, int64_t row_offset, int64_t col_offset,
                         double standard_deviation) {
  const int64_t rows = out.size(-2), cols = out.size(-1), rows_of_stack = out.numel() / cols;
  constexpr int64_t kLanes = kNormalsOfBlock;
  const int64_t first_block = col_offset / kLanes, skipped = col_offset % kLanes;
  const int64_t blocks = (skipped + cols + kLanes - 1) / kLanes;
  const auto seed = static_cast<uint64_t>(random.seed);
  const uint64_t stream = random.steps_before ? static_cast<uint64_t>(*random.steps_before) + 1 : random.stream;
  TORCHDION_DISPATCH_FLOATING(out.scalar_type(), "torchdion::sketch_", [&] {
    scalar_t* data = out.mutable_data_ptr<scalar_t>();
    at::parallel_for(0, rows_of_stack, 4096 / std::max<int64_t>(1, cols) + 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        scalar_t* row = data + i * cols;
        const int64_t matrix = i / rows, row_of_matrix = row_offset + i % rows;
        for (int64_t block = 0; block < blocks; ++block) {
          const Normals entries = normals(seed, stream + matrix, row_of_matrix, first_block + block);
          const int64_t start = block * kLanes - skipped;  // the first entry's column here
          for (int64_t j = std::max<int64_t>(0, -start); j < std::min(kLanes, cols - start); ++j) {
            row[start + j] = rounded<scalar_t>(standard_deviation * entries.values[j]);
          }
        }
      }
    });
  });
}

}  // namespace torchdion::linalg::cpu
