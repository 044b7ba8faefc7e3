// The tiles of a symmetric matrix on and below its diagonal, which are all that a product of it computes.
#pragma once

#include <cstdint>

#include "linalg/host_device.h"

namespace torchdion::linalg {

// Square, as many rows as two blocks of a cluster compute.
inline constexpr int64_t kLowerTile = 256;

struct LowerTile {
  int32_t row, col;  // in tiles, col ≤ row
};

inline int64_t tiles_across(int64_t p) { return (p + kLowerTile - 1) / kLowerTile; }

inline int64_t count_lower_tiles(int64_t p) { return tiles_across(p) * (tiles_across(p) + 1) / 2; }

// They are taken by pairs of rows, the last and the first, then those between them: across + 1 tiles in each.
TORCHDION_HOST_DEVICE LowerTile lower_tile(int32_t pair, int32_t place, int32_t across) {
  const int32_t of_last = across - pair;  // tiles in the lower row of the pair
  return place < of_last ? LowerTile{of_last - 1, place} : LowerTile{pair, place - of_last};
}

// How many of the p² entries they hold.
inline int64_t count_lower_entries(int64_t p) {
  int64_t entries = 0;
  for (int64_t begin = 0; begin < p; begin += kLowerTile) {
    const int64_t end = begin + kLowerTile < p ? begin + kLowerTile : p;
    entries += (end - begin) * end;
  }
  return entries;
}

}  // namespace torchdion::linalg
