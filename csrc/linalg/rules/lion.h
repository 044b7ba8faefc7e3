// Lion (arXiv 2302.06675) for one entry: X ← (1 − η λ) X − η sign(β₁ M + (1 − β₁) G);  M ← β₂ M + (1 − β₂) G.
#pragma once

#include "linalg/least_momentum.h"
#include "linalg/rules/decay.h"

namespace torchdion::linalg {

struct LionHyperparameters {
  double beta1 = 0.95;  // β₁, of the update
  double beta2 = 0.98;  // β₂, of the momentum
};

// A rule (elementwise.h) with the state M.
template <class T>
struct LionRule {
  using Number = T;
  using Hyperparameters = LionHyperparameters;
  static constexpr int states = 1, corrections = 0;

  T keep, lr, beta1, rest1, beta2, rest2, least;

  TORCHDION_HOST_DEVICE LionRule(const LionHyperparameters& hyper, Rates rates, double least_momentum, const double*)
      : keep(static_cast<T>(1 - rates.lr * rates.weight_decay)),
        lr(static_cast<T>(rates.lr)),
        beta1(static_cast<T>(hyper.beta1)),
        rest1(static_cast<T>(1 - hyper.beta1)),
        beta2(static_cast<T>(hyper.beta2)),
        rest2(static_cast<T>(1 - hyper.beta2)),
        least(static_cast<T>(least_momentum)) {}

  template <Decay decay>
  TORCHDION_HOST_DEVICE void update(T& x, T g, T& m) const {
    const T sign = sign_of(beta1 * m + rest1 * g);
    x = decay_of<decay>(keep, x, sign) * x - lr * sign;
    m = zero_below(least, beta2 * m + rest2 * g);
  }
};

}  // namespace torchdion::linalg
