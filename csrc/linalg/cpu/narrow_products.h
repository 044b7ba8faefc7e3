// FP32 products with few columns, as factors of a low rank are: BLAS takes longer to rearrange their operands than to
// multiply them.
#pragma once

#include "linalg/cpu/blas.h"

namespace torchdion::linalg::cpu {

// True for products with a matrix of these sizes, inner×cols, that narrow_gemm() computes faster than gemm() does;
// false on processors without its instructions.
bool is_narrow(int64_t cols, int64_t inner);

// gemm(), for C in row-major order. A row of C has the same bits whatever rows are computed with it.
void narrow_gemm(Block<float> C, Block<const float> A, Block<const float> B, int64_t rows, int64_t cols, int64_t inner,
                 float alpha, float beta);

}  // namespace torchdion::linalg::cpu
