#pragma once

#include "linalg/matrices.h"

namespace torchdion::linalg {

// A_i ← α B_i; they may differ in dtype and strides.
void copy_(const Matrices& A, const Matrices& B, double alpha = 1);

}  // namespace torchdion::linalg
