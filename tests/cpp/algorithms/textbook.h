// The paper's Algorithm 1 line by line, in FP64 with Householder QR: what the optimized one is compared with. With
// nesterov, and without error feedback, as csrc/algorithms/dion.cpp says.
#pragma once

#include <torchdion/options.h>

#include "algorithms/option.h"
#include "tensors.h"

namespace torchdion::algorithms {

struct Textbook {
  at::Tensor X, M, Q;  // FP64
  Options options;

  // Orientation::right runs the algorithm on the transposes; the shape factor is always that of X itself.
  void step(const at::Tensor& gradient, Orientation orientation) {
    const bool right = orientation == Orientation::right;
    const at::Tensor G = gradient.to(at::kDouble) * (options.flag("maximize") ? -1 : 1);
    const double mu = options.number("mu");
    const bool feeds_back = options.flag("error_feedback"), is_ahead = options.flag("nesterov");
    const at::Tensor both = feeds_back ? M + G : mu * M + G, ahead = feeds_back ? both + mu * G : mu * both + G;
    const at::Tensor B = right ? both.mT() : both, of_L = is_ahead ? ahead : both, L = right ? of_L.mT() : of_L;
    const at::Tensor P = std::get<0>(at::linalg_qr(L.matmul(Q)));
    const at::Tensor R = L.mT().matmul(P);
    const at::Tensor next = feeds_back ? B - (1 - mu) * P.matmul(R.mT()) : B;
    M = right ? next.mT() : next;
    Q = R / at::linalg_vector_norm(R, 2, {-2}, /*keepdim=*/true);
    const at::Tensor update = P.matmul(Q.mT());
    const double shape = std::sqrt(static_cast<double>(X.size(-2)) / static_cast<double>(X.size(-1)));
    const double lr = options.number("lr"), weight_decay = options.number("weight_decay");
    X = (1 - lr * weight_decay) * X - lr * shape * (right ? update.mT() : update);
  }
};

}  // namespace torchdion::algorithms
