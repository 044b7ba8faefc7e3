// Products of BF16 operands with FP32 sums, on processors that have instructions for them.
//
// The bits of a product depend on shapes, strides and dtypes alone: not on addresses, on the number of threads or on
// what else is in the list. Numbers below 2⁻¹²⁶ count as zero, as those instructions have it.
#pragma once

#include <torchdion/options.h>

#include "linalg/matrices.h"

namespace torchdion::linalg::cpu {

// Whether this processor has them, and torch a kernel that uses them.
bool has_bfloat16_products();

// For tests: products without them from now on; returns whether there were any.
bool exchange_bfloat16_products(bool allowed);

// Whether C ← α A B is a product of BF16 operands: where both are stored so, and where `precision` says that FP32 may
// be rounded to it. What is stored as FP16 is not: it has more bits.
bool multiplies_bfloat16(const Matrices& C, const Matrices& A, const Matrices& B, Precision precision);

// C ← α A B + β D for every i, of operands that are FP32, rounded to BF16, or BF16. D may be C, and is not FP64; sums
// are FP32 also in a C that is. `symmetric`: A B and D are; what is above the diagonal of C is what is below it.
void multiply_bfloat16(const Matrices& C, const Matrices& D, const Matrices& A, const Matrices& B, double alpha,
                       double beta, bool symmetric);

// Each entry of `rows` contiguous rows becomes the nearest BF16. A finite number beyond its range becomes its largest;
// NaN and infinity stay what they are. `largest`: null, or [cols], becomes the largest magnitude in each column, if
// that is larger and a number.
void round_to_bfloat16_(float* entries, int64_t rows, int64_t cols, float* largest = nullptr);

// The matrices in FP32, their entries rounded to BF16. Those that are FP32 get memory.
Matrices rounded_to_bfloat16(const Matrices& A, at::Tensor& memory);

}  // namespace torchdion::linalg::cpu
