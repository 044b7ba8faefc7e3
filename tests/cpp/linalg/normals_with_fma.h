#pragma once

#include "linalg/normals.h"

namespace torchdion::linalg {

using NormalsOf = Normals (*)(uint64_t seed, uint64_t stream, int64_t row, int64_t column_block);

// normals() compiled for processors that have one instruction for a product and a sum (tests/cpp/CMakeLists.txt).
[[gnu::visibility("default")]] Normals normals_with_fma(uint64_t seed, uint64_t stream, int64_t row,
                                                        int64_t column_block);

}  // namespace torchdion::linalg
