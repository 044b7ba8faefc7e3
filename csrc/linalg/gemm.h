#pragma once

#include <torchdion/options.h>

#include "linalg/matrices.h"

namespace torchdion::linalg {

// A factor of a product: a number, or one that is read from the memory of the device when the product is computed.
struct Factor {
  double value = 1;
  at::Tensor device = {};  // one FP32 or FP64 number, of the dtype that the product is summed in; or undefined: `value`

  Factor(double value) : value(value) {}
  explicit Factor(at::Tensor device) : device(std::move(device)) {}
};

// C_i ← α A_i B_i + β C_i for every i, in place, reading the matrices where they lie. Products are summed in FP64 when
// an operand is FP64, else in FP32, and rounded once to C's dtype. With β = 0, C is not read; a β on
// the device, whatever it is, needs a C that has been written. Both factors are numbers or both on the device.
// `precision` says what FP32 operands may be rounded to (precision_on). Into FP16, finite sums beyond its range are
// stored as its largest number; on CUDA, infinite ones too.
void gemm_(const Matrices& C, const Matrices& A, const Matrices& B, const Factor& alpha = 1, const Factor& beta = 1,
           Precision precision = Precision::highest);

// C_i ← α A_i B_i + β D_i for every i, as gemm_ computes it at this precision. D is C itself, or other matrices than A,
// B and C may be: C overlaps neither A nor B. With β = 0, D is not read. `symmetric`: the caller knows that A B and D
// are, and that B is A.t() or both are symmetric too: half of the product may be computed and mirrored, and symmetric
// operands read as their transposes. Which half says nothing of the bits of the other.
void addmm_(const Matrices& C, const Matrices& D, const Matrices& A, const Matrices& B, double alpha, double beta,
            Precision precision = Precision::highest, bool symmetric = false);

}  // namespace torchdion::linalg
