// GEMM on row-major or transposed blocks, on the BLAS that torch itself carries (MKL in the x86-64 wheels).
#pragma once

#include <cstdint>

namespace torchdion::linalg::cpu {

// A block of a matrix: element (i, j) at data[i · row_stride + j · col_stride], one of the strides 1.
template <class T>
struct Block {
  T* data;
  int64_t row_stride, col_stride;

  Block at(int64_t row, int64_t col) const {
    return {data + row * row_stride + col * col_stride, row_stride, col_stride};
  }
  Block t() const { return {data, col_stride, row_stride}; }
};

// C ← α A B + β C, with C rows×cols and A rows×inner. With β = 0, C is not read. Inside at::parallel_for it runs on
// one thread, outside on as many as torch may use.
void gemm(Block<float> C, Block<const float> A, Block<const float> B, int64_t rows, int64_t cols, int64_t inner,
          float alpha, float beta);
void gemm(Block<double> C, Block<const double> A, Block<const double> B, int64_t rows, int64_t cols, int64_t inner,
          double alpha, double beta);

template <class T>
Block<const T> readonly(Block<T> block) {
  return {block.data, block.row_stride, block.col_stride};
}

}  // namespace torchdion::linalg::cpu
