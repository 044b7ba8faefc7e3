#include "linalg/dct.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "tensors.h"

namespace torchdion::linalg {

namespace {

TEST(ChunkGrids, CoverEveryEntryOnce) {
  for (const auto& [m, n, size] : {std::tuple(12, 20, 5), {5, 5, 5}, {3, 4, 8}, {16, 7, 8}, {1, 1, 1}}) {
    at::Tensor covered = at::zeros({2, m, n});
    for (const ChunkGrid& grid : chunk_grids(m, n, size)) {
      const Matrices chunks = chunks_of(Matrices(covered), grid);
      EXPECT_EQ(chunks.count(), 2 * grid.chunks());
      for (int64_t k = 0; k < chunks.count(); ++k) {
        for (int64_t i = 0; i < grid.rows; ++i) {
          for (int64_t j = 0; j < grid.cols; ++j) {
            chunks.matrix<float>(k)[i * chunks.row_stride + j * chunks.col_stride] += 1;
          }
        }
      }
    }
    EXPECT_TRUE(covered.eq(1).all().item<bool>()) << m << "×" << n << " " << size;
  }
}

// By the sum of cosines itself.
double coefficient(const at::Tensor& chunk, int64_t k, int64_t l) {
  const int64_t rows = chunk.size(0), cols = chunk.size(1);
  const auto norm = [](int64_t frequency, int64_t size) { return std::sqrt((frequency == 0 ? 1.0 : 2.0) / size); };
  double sum = 0;
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < cols; ++j) {
      sum += chunk[i][j].item<double>() * std::cos(std::numbers::pi * (2 * i + 1) * k / (2 * rows)) *
             std::cos(std::numbers::pi * (2 * j + 1) * l / (2 * cols));
    }
  }
  return sum * norm(k, rows) * norm(l, cols);
}

TEST(ChunkTransform, IsTheCosineTransformOfEachChunkWhateverItsStrides) {
  const at::Tensor tall = normal({2, 11, 6}, 5, at::kDouble);
  for (const at::Tensor& matrices : {tall, tall.transpose(1, 2)}) {
    for (const ChunkGrid& grid : chunk_grids(matrices.size(1), matrices.size(2), 4)) {
      const int64_t count = 2 * grid.chunks();
      const at::Tensor found = at::empty({count, grid.rows, grid.cols}, at::kDouble), scratch = at::empty_like(found);
      const ChunkTransform transform(grid, found.options(), Precision::highest);
      transform.forward(found, chunks_of(Matrices(matrices), grid), scratch);
      for (int64_t c = 0; c < count; ++c) {
        const int64_t row = grid.row + c % grid.chunks() / grid.across * grid.rows;
        const int64_t col = grid.col + c % grid.across * grid.cols;
        const at::Tensor chunk = matrices[c / grid.chunks()].narrow(0, row, grid.rows).narrow(1, col, grid.cols);
        for (int64_t k = 0; k < grid.rows; ++k) {
          for (int64_t l = 0; l < grid.cols; ++l) {
            EXPECT_NEAR(found[c][k][l].item<double>(), coefficient(chunk, k, l), 1e-13);
          }
        }
      }
    }
  }
}

TEST(ChunkTransform, BackwardIsItsInverseAndAddsWhatFactorsSay) {
  const at::Tensor matrices = normal({3, 9, 14}, 6, at::kDouble), expected = matrices.clone() * 2;
  for (const ChunkGrid& grid : chunk_grids(9, 14, 8)) {
    const at::Tensor found = at::empty({3 * grid.chunks(), grid.rows, grid.cols}, at::kDouble);
    const at::Tensor scratch = at::empty_like(found);
    const Matrices chunks = chunks_of(Matrices(matrices), grid);
    const ChunkTransform transform(grid, found.options(), Precision::highest);
    transform.forward(found, chunks, scratch);
    transform.backward(chunks, found, scratch, -1, 3);
  }
  EXPECT_LE((matrices - expected).abs().max().item<double>(), 1e-13);
}

TEST(ChunkTransform, OfFrequenciesThatVanishSomewhereIsExactlyZeroThere) {
  const ChunkGrid grid{0, 0, 3, 1, 1, 1};
  const at::Tensor coefficients = at::zeros({1, 3, 1}, at::kDouble), scratch = at::empty_like(coefficients);
  coefficients[0][1][0] = 1;  // cos(π (2i + 1) / 6): of the middle row a right angle
  const at::Tensor chunk = at::empty({1, 3, 1}, at::kDouble);
  ChunkTransform(grid, chunk.options(), Precision::highest).backward(Matrices(chunk), coefficients, scratch, 1, 0);
  EXPECT_EQ(chunk[0][1][0].item<double>(), 0);
  EXPECT_GT(chunk[0][0][0].item<double>(), 0.7);
}

}  // namespace

}  // namespace torchdion::linalg
