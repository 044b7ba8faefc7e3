// AdamW (arXiv 1711.05101) for one entry, with bias correction, as torch.optim.AdamW computes it.
// M ← β₁ M + (1 − β₁) G;  V ← β₂ V + (1 − β₂) G²;  X ← (1 − η λ) X − η (M / (1 − β₁ᵗ)) / (sqrt(V / (1 − β₂ᵗ)) + ε).
#pragma once

#include <cmath>

#include "linalg/rules/decay.h"

namespace torchdion::linalg {

struct AdamWHyperparameters {
  double beta1 = 0.9;     // β₁
  double beta2 = 0.95;    // β₂
  double epsilon = 1e-8;  // ε
};

// A rule (elementwise.h) with the states M and V, corrected by 1 − β₁ᵗ and 1 − β₂ᵗ.
template <class T>
struct AdamWRule {
  using Number = T;
  using Hyperparameters = AdamWHyperparameters;
  static constexpr int states = 2, corrections = 2;

  T keep, lr, root2, epsilon, beta1, rest1, beta2, rest2;

  TORCHDION_HOST_DEVICE static double correction(const AdamWHyperparameters& hyper, double step, int state) {
    return 1 - std::pow(state == 0 ? hyper.beta1 : hyper.beta2, step);
  }

  TORCHDION_HOST_DEVICE AdamWRule(const AdamWHyperparameters& hyper, Rates rates, double, const double* correction)
      : keep(static_cast<T>(1 - rates.lr * rates.weight_decay)),
        lr(static_cast<T>(rates.lr / correction[0])),
        root2(static_cast<T>(std::sqrt(correction[1]))),
        epsilon(static_cast<T>(hyper.epsilon)),
        beta1(static_cast<T>(hyper.beta1)),
        rest1(static_cast<T>(1 - hyper.beta1)),
        beta2(static_cast<T>(hyper.beta2)),
        rest2(static_cast<T>(1 - hyper.beta2)) {}

  template <Decay decay>
  TORCHDION_HOST_DEVICE void update(T& x, T g, T& m, T& v) const {
    m = beta1 * m + rest1 * g;
    v = beta2 * v + rest2 * g * g;
    x = decay_of<decay>(keep, x, m) * x - lr * m / (std::sqrt(v) / root2 + epsilon);
  }
};

}  // namespace torchdion::linalg
