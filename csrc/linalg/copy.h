#pragma once

#include "linalg/matrices.h"

namespace torchdion::linalg {

// A_i ← α B_i; they may differ in dtype and strides. Where `left_out`, on their device, is there and not 0, nothing is
// written.
void copy_(const Matrices& A, const Matrices& B, double alpha = 1, const float* left_out = nullptr);

// A_i ← 0 where `left_out`, one number, or unchanged[i] is there and not 0. Both lie on A's device.
void clear_(const Matrices& A, const float* left_out, const float* unchanged);

}  // namespace torchdion::linalg
