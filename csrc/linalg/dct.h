// The discrete cosine transform of matrices, chunk by chunk: orthonormal, of type II, in both directions.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchdion/options.h>

#include <vector>

#include "linalg/matrices.h"

namespace torchdion::linalg {

// Equally large chunks of each of some equally shaped matrices: blocks of rows×cols, side by side from (row, col) on.
struct ChunkGrid {
  int64_t row, col;    // where the first one begins
  int64_t rows, cols;  // of each
  int64_t down, across;

  int64_t chunks() const { return down * across; }  // of one matrix
  int64_t size() const { return rows * cols; }
};

// All chunks of m×n matrices: size×size from the first entry on, and what is left at the end of either side.
std::vector<ChunkGrid> chunk_grids(int64_t m, int64_t n, int64_t size);

// The chunks of a grid where they lie, those of each matrix row by row.
Matrices chunks_of(const Matrices& matrices, const ChunkGrid& grid);

// Transforms chunks of a grid. Entries and coefficients are stacks of [chunks, rows, cols] in the computing dtype.
class ChunkTransform {
 public:
  ChunkTransform(const ChunkGrid& grid, at::TensorOptions options, Precision precision);

  // coefficients ← those of the chunks. `scratch` is as large.
  void forward(const at::Tensor& coefficients, const Matrices& chunks, const at::Tensor& scratch) const;
  // chunks ← β chunks + α (what has these coefficients)
  void backward(const Matrices& chunks, const at::Tensor& coefficients, const at::Tensor& scratch, double alpha,
                double beta) const;

 private:
  at::Tensor of_rows_, of_cols_;
  Precision precision_;
};

// Floating-point operations of one transform, in either direction, of an m×n matrix.
int64_t dct_operations(int64_t m, int64_t n, int64_t size);

}  // namespace torchdion::linalg
