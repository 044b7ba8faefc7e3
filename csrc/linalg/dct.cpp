#include "linalg/dct.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cos.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "linalg/gemm.h"

namespace torchdion::linalg {

namespace {

// Where chunks of one size lie along a side.
struct Run {
  int64_t begin, length, count;
};

std::vector<Run> runs_of(int64_t side, int64_t size) {
  std::vector<Run> runs;
  if (side >= size) runs.push_back({0, size, side / size});
  if (side % size > 0) runs.push_back({side / size * size, side % size, 1});
  return runs;
}

// The matrix C of C x, [size, size]. What is zero is exactly zero: the cosine of an odd multiple of a right angle.
at::Tensor basis(int64_t size, at::TensorOptions options) {
  const at::TensorOptions of_integers = options.dtype(at::kLong);
  const at::Tensor k = at::arange(size, of_integers).unsqueeze(1), i = at::arange(size, of_integers);
  const at::Tensor angles = k.mul(i.mul(2).add(1)).remainder(4 * size);  // in units of a right angle / size
  at::Tensor cosines = at::cos(angles.to(at::kDouble).mul(std::numbers::pi / (2 * static_cast<double>(size))));
  cosines.masked_fill_(angles.remainder(2 * size).eq(size), 0);
  cosines.mul_(std::sqrt(2.0 / static_cast<double>(size)));
  cosines.select(0, 0).mul_(std::numbers::sqrt2 / 2);
  return cosines.to(options.dtype());
}

// The same matrix for every one of so many products.
Matrices repeated(const at::Tensor& matrix, int64_t count) {
  return Matrices(matrix.expand({count, matrix.size(0), matrix.size(1)}));
}

}  // namespace

std::vector<ChunkGrid> chunk_grids(int64_t m, int64_t n, int64_t size) {
  std::vector<ChunkGrid> grids;
  for (const Run& rows : runs_of(m, size)) {
    for (const Run& cols : runs_of(n, size)) {
      grids.push_back({rows.begin, cols.begin, rows.length, cols.length, rows.count, cols.count});
    }
  }
  return grids;
}

Matrices chunks_of(const Matrices& matrices, const ChunkGrid& grid) {
  const auto element = static_cast<int64_t>(c10::elementSize(matrices.dtype));
  Matrices chunks = matrices;
  chunks.rows = grid.rows;
  chunks.cols = grid.cols;
  chunks.spacing.reset();
  chunks.pointers.reset();
  chunks.data.clear();
  for (char* const matrix : matrices.data) {
    for (int64_t i = 0; i < grid.down; ++i) {
      for (int64_t j = 0; j < grid.across; ++j) {
        const int64_t row = grid.row + i * grid.rows, col = grid.col + j * grid.cols;
        chunks.data.push_back(matrix + (row * matrices.row_stride + col * matrices.col_stride) * element);
      }
    }
  }
  return chunks;
}

ChunkTransform::ChunkTransform(const ChunkGrid& grid, at::TensorOptions options, Precision precision)
    : of_rows_(basis(grid.rows, options)), of_cols_(basis(grid.cols, options)), precision_(precision) {}

void ChunkTransform::forward(const at::Tensor& coefficients, const Matrices& chunks, const at::Tensor& scratch) const {
  if (chunks.count() == 0) return;
  const Matrices half(scratch);
  gemm_(half, repeated(of_rows_, chunks.count()), chunks, 1, 0, precision_);
  gemm_(Matrices(coefficients), half, repeated(of_cols_.t(), chunks.count()), 1, 0, precision_);
}

void ChunkTransform::backward(const Matrices& chunks, const at::Tensor& coefficients, const at::Tensor& scratch,
                              double alpha, double beta) const {
  if (chunks.count() == 0) return;
  const Matrices half(scratch);
  gemm_(half, Matrices(coefficients), repeated(of_cols_, chunks.count()), 1, 0, precision_);
  gemm_(chunks, repeated(of_rows_.t(), chunks.count()), half, alpha, beta, precision_);
}

int64_t dct_operations(int64_t m, int64_t n, int64_t size) {
  int64_t operations = 0;
  for (const ChunkGrid& grid : chunk_grids(m, n, size)) {
    operations += grid.chunks() * 2 * grid.size() * (grid.rows + grid.cols);
  }
  return operations;
}

}  // namespace torchdion::linalg
