#include "engine/state.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>

#include "linalg/sketch.h"

namespace torchdion::engine {

namespace {

void check_dense(const at::Tensor& X, const at::Tensor& tensor, const char* what) {
  TORCH_CHECK_VALUE(tensor.layout() == at::kStrided && tensor.is_cpu() && at::isFloatingType(tensor.scalar_type()),
                    "torchdion.Dion: the ", what, " of a parameter of shape ", X.sizes(),
                    " must be a dense floating-point CPU tensor, got ", tensor.toString());
}

void check_contiguous(const at::Tensor& X, const at::Tensor& state, const char* what) {
  TORCH_CHECK_VALUE(state.is_contiguous(), "torchdion.Dion: the ", what, " of a parameter of shape ", X.sizes(),
                    " must be contiguous, got strides ", state.strides());
}

void check_shape(const at::Tensor& X, const at::Tensor& tensor, const char* what) {
  TORCH_CHECK_VALUE(tensor.sizes() == X.sizes(), "torchdion.Dion: the ", what, " of a parameter of shape ", X.sizes(),
                    " must have that shape, got ", tensor.sizes());
}

}  // namespace

int64_t rank_of(int64_t m, int64_t n, double rank_fraction, int64_t rank_multiple_of) {
  const int64_t largest = std::min(m, n);
  const double exact = rank_fraction * static_cast<double>(largest);
  const int64_t rank = std::max<int64_t>(1, static_cast<int64_t>(std::ceil(exact - 1e-9 * exact)));
  if (rank_multiple_of >= largest) return largest;
  return std::min((rank + rank_multiple_of - 1) / rank_multiple_of * rank_multiple_of, largest);
}

at::Tensor start_of_Q(at::IntArrayRef sizes, MatrixForm form, const QStart& start, at::TensorOptions options) {
  std::vector<int64_t> shape = matrix_sizes(sizes, form);
  const int64_t n = shape.back(), m = shape.end()[-2];
  shape.pop_back();
  shape.back() = start.orientation == Orientation::right ? m : n;
  shape.push_back(m * n == 0 ? 0 : rank_of(m, n, start.rank_fraction, start.rank_multiple_of));
  const at::Tensor Q = at::empty(shape, options);
  if (Q.numel() == 0) return Q;
  const at::Tensor stack = Q.view({-1, Q.size(-2), Q.size(-1)});
  const double standard_deviation = 1 / std::sqrt(static_cast<double>(Q.size(-2)));
  for (int64_t i = 0; i < stack.size(0); ++i) {
    linalg::sketch_(stack[i], linalg::RandomMatrix::start(start.seed, start.parameter, i), 0, 0, standard_deviation);
  }
  return Q;
}

void check_gradient(const at::Tensor& X, const at::Tensor& G) {
  check_dense(X, X, "data");
  check_shape(X, G, "gradient");
  check_dense(X, G, "gradient");
}

void check_Q(const at::Tensor& X, const at::Tensor& Q, MatrixForm form) {
  check_dense(X, Q, "state Q");
  check_contiguous(X, Q, "state Q");
  const std::vector<int64_t> sizes = matrix_sizes(X.sizes(), form);
  const int64_t m = sizes.end()[-2], n = sizes.end()[-1], largest = std::min(m, n);
  const at::IntArrayRef stack(sizes.data(), sizes.size() - 2);
  TORCH_CHECK_VALUE(Q.dim() >= 2 && Q.sizes().slice(0, Q.dim() - 2) == stack,
                    "torchdion.Dion: the state Q of a parameter of shape ", X.sizes(),
                    " must hold one matrix for each of ", stack, ", got shape ", Q.sizes());
  const int64_t rows = Q.size(-2), r = Q.size(-1), least = largest == 0 ? 0 : 1;
  const std::string shapes = m == n ? c10::str(m, "×r") : c10::str(m, "×r or ", n, "×r");
  TORCH_CHECK_VALUE((rows == m || rows == n) && r >= least && r <= largest, "torchdion.Dion: the state Q of a ", m, "×",
                    n, " matrix must be ", shapes, " with ", least, " ≤ r ≤ ", largest, ", got ", rows, "×", r);
}

void check_elementwise_state(const at::Tensor& X, const at::Tensor& state, const char* what) {
  check_shape(X, state, what);
  check_dense(X, state, what);
  check_contiguous(X, state, what);
}

}  // namespace torchdion::engine
