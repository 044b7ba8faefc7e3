#pragma once

#include "linalg/matrices.h"
#include "linalg/step_numbers.h"

namespace torchdion::linalg {

// M_i ← M_i + G_i as the rule has it (accumulate_()), and in the same pass L_i ← G_i + ahead · M_i of the new M, with
// G_i as it counts; `ahead` 0 stands for L_i ← M_i. L_i becomes zero where the rule leaves M_i as it is. All may differ
// in dtype and strides.
void look_ahead_(const Matrices& L, const Matrices& M, const Matrices& G, const GradientRule& rule, double ahead);

}  // namespace torchdion::linalg
