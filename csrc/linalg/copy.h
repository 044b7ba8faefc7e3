#pragma once

#include "linalg/matrices.h"
#include "linalg/step_numbers.h"

namespace torchdion::linalg {

// A_i ← α B_i, but for frozen ones; they may differ in dtype and strides.
void copy_(const Matrices& A, const Matrices& B, double alpha = 1, const Frozen& frozen = {});

// A_i ← 0 of those that are frozen.
void clear_(const Matrices& A, const Frozen& frozen);

}  // namespace torchdion::linalg
