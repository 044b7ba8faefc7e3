#include "linalg/frobenius_normalize.h"

#include <numeric>

#include "linalg/cpu/convert.h"
#include "linalg/cpu/operations.h"
#include "linalg/cpu/parallel_rows.h"

namespace torchdion::linalg::cpu {

namespace {

template <class T>
double square_sum(const T* row, int64_t count) {
  constexpr int64_t kLanes = 8;  // sums side by side, for instructions that add so many at once
  double sums[kLanes] = {};
  int64_t j = 0;
  for (; j + kLanes <= count; j += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const auto entry = static_cast<double>(row[j + lane]);
      sums[lane] += entry * entry;
    }
  }
  for (; j < count; ++j) sums[0] += static_cast<double>(row[j]) * static_cast<double>(row[j]);
  return std::accumulate(std::begin(sums), std::end(sums), 0.0);
}

}  // namespace

// Rows have sums of their own, so that the bits of a norm are those of any number of threads.
void Operations::frobenius_normalize_(const at::Tensor& X, double slack) {
  const int64_t count = X.size(0), rows = X.size(1), cols = X.size(2);
  const int64_t grain = kElementsPerThread / cols + 1;
  std::vector<double> sums(count * rows);
  TORCHDION_DISPATCH_FLOATING(X.scalar_type(), "torchdion::frobenius_normalize_", [&] {
    using T = at::opmath_type<scalar_t>;
    auto* data = X.mutable_data_ptr<scalar_t>();
    at::parallel_for(0, count * rows, grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) sums[i] = square_sum(data + i * cols, cols);
    });
    parallel_rows(count, rows, grain, [&](int64_t index, int64_t first, int64_t many) {
      const double* of_matrix = sums.data() + index * rows;
      const double norm = std::sqrt(std::accumulate(of_matrix, of_matrix + rows, 0.0));
      if (norm == 0) return;
      const double factor = std::min(1 / (slack * norm), static_cast<double>(std::numeric_limits<T>::max()));
      const T scale = static_cast<T>(norm == norm ? factor : norm);  // NaN stays one
      scalar_t* entries = data + (index * rows + first) * cols;
      for (int64_t j = 0; j < many * cols; ++j) entries[j] = rounded<scalar_t>(scale * static_cast<T>(entries[j]));
    });
  });
}

}  // namespace torchdion::linalg::cpu
