// GEMM on row-major or transposed blocks, on the BLAS that torch itself carries (MKL in the x86-64 wheels).
#pragma once

#include <cstdint>
#include <type_traits>

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
  operator Block<const T>() const requires(!std::is_const_v<T>) { return {data, row_stride, col_stride}; }
};

// C ← α A B + β C, with C rows×cols and A rows×inner. With β = 0, C is not read. Inside at::parallel_for it runs on
// one thread, outside on as many as torch may use. T is float or double.
template <class T>
void gemm(Block<T> C, std::type_identity_t<Block<const T>> A, std::type_identity_t<Block<const T>> B, int64_t rows,
          int64_t cols, int64_t inner, std::type_identity_t<T> alpha, std::type_identity_t<T> beta);

// FP32 products with few columns or of few terms, as those with factors of a low rank are: BLAS takes longer to
// rearrange their operands than to multiply them, and scales C in a pass of its own.
//
// True for products with a matrix of these sizes, inner×cols, that narrow_gemm() computes faster than gemm() does;
// false on processors without its instructions.
bool is_narrow(int64_t cols, int64_t inner);

// gemm(), for C in row-major order. A row of C has the same bits whatever rows are computed with it.
void narrow_gemm(Block<float> C, Block<const float> A, Block<const float> B, int64_t rows, int64_t cols, int64_t inner,
                 float alpha, float beta);

}  // namespace torchdion::linalg::cpu
