// The values of options that are chosen among a few.
#pragma once

#include <cstdint>

namespace torchdion {

// Which of the two factors is the state Q (arXiv 2504.05295, Algorithms 3 and 4).
enum class Orientation {
  right,       // Algorithm 4: the body runs on Xᵀ; P is n×r, Q is m×r
  left,        // Algorithms 1 and 3: P is m×r, Q is n×r
  short_side,  // of both the one whose P has min(m, n) rows; right, of square matrices
};

// How Dion makes the columns of P orthonormal.
enum class Orthonormalize {
  automatic,    // what benchmarks/orthonormalize.py shows to be fastest at equal robustness
  rcqr,         // randomized Cholesky QR (Algorithm 2)
  cholesky_qr,  // Cholesky QR on FP64 Gram matrices
  qr,           // Householder QR
};

// How Dion finds its factors.
enum class Factorization {
  power_iteration,  // one, from the last step's Q
  svd,              // the best there are, at the cost of whole matrices: for comparisons (Appendix B.1)
};

// How what P Rᵀ leaves of the matrix that Dion factors moves the weights too.
enum class Residual {
  scaled,  // over the length of R's smallest columns
  sign,    // by its signs, at twice the Frobenius norm that Muon's update has there
};

// What Dion takes from R = Bᵀ P for the update and as the next Q.
enum class RightFactor {
  normalized,   // R with columns of length 1
  orthonormal,  // the orthonormal factor of R
};

// How Muon orthonormalizes its momentum.
enum class NewtonSchulz {
  automatic,      // polar_express; on GPUs gram, of matrices for which it has fewer operations
  jordan,         // one polynomial, again and again; singular values end between 0.7 and 1.2
  polar_express,  // for each step the best polynomial there is (arXiv 2505.16932)
  gram,           // the same polynomials, evaluated on the Gram matrix of the shorter side
};

// What an m×n matrix's update, whose singular values are about 1, is multiplied by beside the learning rate.
enum class AdjustLr {
  spectral_norm,  // sqrt(m / n), as Dion's
  rms_norm,       // 0.2 sqrt(max(m, n)), so that its entries are as large as AdamW's (arXiv 2502.16982)
  original,       // sqrt(max(1, m / n))
};

// What Dion2 chooses of a matrix.
enum class Select {
  automatic,  // slices of its shorter side, rows where both are as long
  rows,       // rows of any matrix
  columns,    // columns of any matrix
};

// What a step does with NaN and infinite entries of gradients.
enum class Nonfinite {
  propagate,  // nothing: the weights show them at once
  zero,       // they count as zero
  skip_step,  // the whole step is left out
  raise,      // the step raises before it writes anything
};

// Who keeps the state of a parameter that all ranks have whole, and updates it.
enum class Owners {
  all,    // every rank
  shard,  // of each part one of the ranks that are its replicas or copies
};

// Of products of FP32 matrices; sums are FP32 always.
enum class Precision {
  highest,  // FP32
  high,     // operands rounded to TF32 on GPUs; CPUs have none and compute at the highest
  medium,   // operands rounded to BF16
};

}  // namespace torchdion
