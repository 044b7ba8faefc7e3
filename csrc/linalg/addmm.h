#pragma once

#include <torchdion/options.h>

#include "linalg/matrices.h"

namespace torchdion::linalg {

// C_i ← α A_i B_i + β D_i for every i, as gemm_ computes it at this precision. D is C itself, or other matrices than A,
// B and C may be: C overlaps neither A nor B. With β = 0, D is not read. `symmetric`: the caller knows that A B and D
// are, and that B is A.t() or both are symmetric too: half of the product may be computed and mirrored, and symmetric
// operands read as their transposes. Which half says nothing of the bits of the other.
void addmm_(const Matrices& C, const Matrices& D, const Matrices& A, const Matrices& B, double alpha, double beta,
            Precision precision = Precision::highest, bool symmetric = false);

}  // namespace torchdion::linalg
