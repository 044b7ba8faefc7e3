// The hyperparameters of each algorithm, the paper's symbol beside each field (arXiv 2504.05295).
#pragma once

#include <cstdint>

namespace torchdion {

// Which of the two factors is the state Q; see design of Algorithms 3 and 4.
enum class Orientation {
  right,  // Algorithm 4: the body runs on Xᵀ; P is n×r, Q is m×r
  left,   // Algorithms 1 and 3: P is m×r, Q is n×r
};

enum class Algorithm { dion, lion, adamw };

enum class Orthonormalize {
  automatic,    // what benchmarks/orthonormalize.py shows to be fastest at equal robustness
  rcqr,         // randomized Cholesky QR (Algorithm 2)
  cholesky_qr,  // Cholesky QR on FP64 Gram matrices
  qr,           // Householder QR
};

// What a step does with NaN and infinite entries of gradients.
enum class Nonfinite {
  propagate,  // nothing: the weights show them at once
  zero,       // they count as zero
  skip_step,  // the whole step is left out
  raise,      // the step raises before it writes anything
};

// Of products of FP32 matrices on GPUs; sums are FP32 always. CPUs compute at the highest.
enum class Precision {
  highest,  // FP32
  high,     // operands rounded to TF32
  medium,   // operands rounded to BF16
};

struct DionHyperparameters {
  double lr = 0.01;            // η, before the shape factor sqrt(m / n)
  double mu = 0.95;            // μ
  double weight_decay = 0.01;  // λ, decoupled
  bool maximize = false;       // ascend: the gradient counts with the other sign
  Orthonormalize orthonormalize = Orthonormalize::automatic;
  double rcqr_oversample = 1.25;  // k / r
  int64_t seed = 0;               // of the sketch
  Precision precision = Precision::high;
};

struct LionHyperparameters {
  double lr = 0.01;         // η
  double beta1 = 0.95;      // β₁, of the update
  double beta2 = 0.98;      // β₂, of the momentum
  double weight_decay = 0;  // λ, decoupled
  bool maximize = false;
};

struct AdamWHyperparameters {
  double lr = 0.002;        // η
  double beta1 = 0.9;       // β₁
  double beta2 = 0.95;      // β₂
  double weight_decay = 0;  // λ, decoupled
  double epsilon = 1e-8;    // ε
  bool maximize = false;
};

}  // namespace torchdion
