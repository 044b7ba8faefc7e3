#pragma once

#include "linalg/matrices.h"

namespace torchdion::linalg {

// C_i ← α A_i B_i + β C_i for every i, in place, reading the matrices where they lie. Products are summed in FP64 when
// an operand is FP64, else in FP32, and rounded once to C's dtype. With β = 0, C is not read.
void gemm_(const Matrices& C, const Matrices& A, const Matrices& B, double alpha = 1, double beta = 1);

}  // namespace torchdion::linalg
