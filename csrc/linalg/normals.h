// Normally distributed numbers as a pure function of a place in an infinite matrix: Box–Muller on Philox.
#pragma once

#include <cmath>

#include "linalg/philox.h"

namespace torchdion::linalg {

inline constexpr int kNormalsOfBlock = 4;  // neighbouring columns that one Philox block makes

struct Normals {
  float values[kNormalsOfBlock];
};

TORCHDION_HOST_DEVICE Normals normals(uint64_t seed, uint64_t stream, int64_t row, int64_t column_block) {
  const PhiloxBlock bits = philox({{static_cast<uint32_t>(row), static_cast<uint32_t>(column_block),
                                    static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)}},
                                  seed);
  Normals out;
  for (int pair = 0; pair < 2; ++pair) {
    constexpr float kTwoPi = 6.28318530717958648f;
    const float uniform = (static_cast<float>(bits.words[2 * pair]) + 1) * 0x1p-32f;  // in (0, 1]
    const float angle = static_cast<float>(bits.words[2 * pair + 1]) * (0x1p-32f * kTwoPi);
    const float radius = sqrtf(-2 * logf(uniform));
    out.values[2 * pair] = radius * cosf(angle);
    out.values[2 * pair + 1] = radius * sinf(angle);
  }
  return out;
}

}  // namespace torchdion::linalg
