#include "linalg/normals_with_fma.h"

namespace torchdion::linalg {

Normals normals_with_fma(uint64_t seed, uint64_t stream, int64_t row, int64_t column_block) {
  return normals(seed, stream, row, column_block);
}

}  // namespace torchdion::linalg
