#pragma once

#include <ATen/core/Tensor.h>

#include "linalg/matrices.h"
#include "linalg/rules/decay.h"

namespace torchdion::linalg {

// How the rows of U go to those of X, on their device and contiguous; undefined: each to its own, as it is.
struct RowRule {
  // [count, rows of X], int32: which row of U, no row twice, or −1, for which zeros count.
  at::Tensor source = {};
  at::Tensor factor = {};  // [count, rows of X], in the dtype of the factors: what that row is multiplied by
};

// X_i ← factors[1] X_i + factors[0] U_i in place, as the rule has it. The factors (device_factors()) lie on the device
// of X, in FP64 where X or U are FP64, else in FP32; so do `scales` ([count]), by which U_i is multiplied. Rows have no
// scales beside their own factors.
void axpby_(const Matrices& X, const Matrices& U, const at::Tensor& factors, const DirectionRule& rule = {},
            const RowRule& rows = {}, const at::Tensor& scales = {});

}  // namespace torchdion::linalg
