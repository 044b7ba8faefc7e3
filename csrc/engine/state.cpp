#include "engine/state.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "linalg/sketch.h"

namespace torchdion::engine {

int64_t rank_of(int64_t m, int64_t n, double rank_fraction, int64_t rank_multiple_of) {
  const int64_t largest = std::min(m, n);
  const double exact = rank_fraction * static_cast<double>(largest);
  const int64_t rank = std::max<int64_t>(1, static_cast<int64_t>(std::ceil(exact - 1e-9 * exact)));
  if (rank_multiple_of >= largest) return largest;
  return std::min((rank + rank_multiple_of - 1) / rank_multiple_of * rank_multiple_of, largest);
}

at::Tensor start_of_Q(at::IntArrayRef sizes, MatrixForm form, const QStart& start, at::TensorOptions options,
                      const Layout& layout) {
  std::vector<int64_t> shape = matrix_sizes(sizes, form);
  const int64_t n = shape.back(), m = shape.end()[-2];
  const bool right = start.orientation == Orientation::right;
  const int64_t length = right ? m : n, r = m * n == 0 ? 0 : rank_of(m, n, start.rank_fraction, start.rank_multiple_of);
  const Piece rows = (right ? layout.rows : layout.cols).piece(length);
  const Piece columns = (right ? layout.cols : layout.rows).piece(r);
  shape.end()[-2] = rows.size;
  shape.back() = columns.size;
  int64_t first = 0;  // matrix of the stack
  if (!layout.batch.absent()) {
    const Piece stack = layout.batch.piece(shape.front());
    first = stack.begin * std::accumulate(shape.begin() + 1, shape.end() - 2, int64_t{1}, std::multiplies<>());
    shape.front() = stack.size;
  }
  const at::Tensor Q = at::empty(shape, options);
  if (Q.numel() == 0) return Q;
  const at::Tensor stack = Q.view({-1, Q.size(-2), Q.size(-1)});
  const double standard_deviation = 1 / std::sqrt(static_cast<double>(length));
  for (int64_t i = 0; i < stack.size(0); ++i) {
    const linalg::RandomMatrix random = linalg::RandomMatrix::start(start.seed, start.parameter, first + i);
    linalg::sketch_(stack[i], random, rows.begin, columns.begin, standard_deviation);
  }
  return Q;
}

}  // namespace torchdion::engine
