// One tile of a product in FP32, on its way to the matrix that it belongs to.
#pragma once

#include <cstdint>

#include "linalg/matrices.h"

namespace torchdion::linalg::cpu {

inline constexpr int64_t kTile = 64;  // rows and columns

// Row-major, kTile numbers from row to row; its first `rows` rows and `cols` columns are of use, but all may be read.
struct ProductTile {
  alignas(64) float sums[kTile * kTile];
};

// Where a tile lies in a matrix.
struct TilePlace {
  int64_t index, row, col, rows, cols;

  TilePlace t() const { return {index, col, row, cols, rows}; }
};

// The steps from sums of products to C, in this order. For processors with has_bfloat16_products().

// tile ← α tile + β D; with β = 0, D is not read.
void combine(ProductTile& tile, const Matrices& D, const TilePlace& place, float alpha, float beta);

// Mirrors the first rows at the diagonal: entries above it become those below.
void mirror_below(ProductTile& tile, int64_t rows);

// C ← tile, rounded to what C is stored as. C is row-major.
void store(const ProductTile& tile, const Matrices& C, const TilePlace& place);

// C ← tileᵀ where that lies in C, by way of `turned`.
void store_transposed(const ProductTile& tile, ProductTile& turned, const Matrices& C, const TilePlace& place);

}  // namespace torchdion::linalg::cpu
