// The paper's Algorithm 1 line by line, in FP64 with Householder QR: what the optimized one is compared with. With
// nesterov, and without error feedback, as csrc/algorithms/dion.cpp says; with the options of residual.h.
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
    const at::Tensor lengths = at::linalg_vector_norm(R, 2, {-2}, /*keepdim=*/true);
    Q = R / lengths;
    if (options.text("right_factor") == "orthonormal") {
      const auto [V, triangle] = at::linalg_qr(R);
      Q = V * triangle.diagonal(0, -2, -1).sign().unsqueeze(-2);
    }
    at::Tensor update = P.matmul(Q.mT());
    if (Q.size(-1) < std::min(X.size(-2), X.size(-1))) update = update + residual(L - P.matmul(R.mT()), lengths);
    const double shape = std::sqrt(static_cast<double>(X.size(-2)) / static_cast<double>(X.size(-1)));
    const double lr = options.number("lr"), weight_decay = options.number("weight_decay");
    X = (1 - lr * weight_decay) * X - lr * shape * (right ? update.mT() : update);
  }

 private:
  at::Tensor residual(const at::Tensor& rest, const at::Tensor& lengths) const {
    if (is_none(options.at("residual"))) return at::zeros_like(rest);
    const double m = static_cast<double>(rest.size(-2)), n = static_cast<double>(rest.size(-1));
    const double r = static_cast<double>(lengths.size(-1));
    if (options.text("residual") == "sign") return rest.sign() * 2 * std::sqrt((std::min(m, n) - r) / (m * n));
    const int64_t quarter = (lengths.size(-1) + 3) / 4;
    return rest / std::get<0>(lengths.sort(-1)).narrow(-1, 0, quarter).mean(-1, /*keepdim=*/true);
  }
};

}  // namespace torchdion::algorithms
