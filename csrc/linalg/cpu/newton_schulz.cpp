#include "linalg/newton_schulz.h"

#include <numeric>

#include "linalg/cpu/avx512.h"
#include "linalg/cpu/bfloat16_products.h"
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

template <class T>
void scale_row(T* row, int64_t count, at::opmath_type<T> factor) {
  for (int64_t j = 0; j < count; ++j) row[j] = rounded<T>(factor * static_cast<at::opmath_type<T>>(row[j]));
}

#if defined(__x86_64__)

// What Newton–Schulz iterations begin with in BF16, on processors that multiply it.
TORCHDION_AVX512 double square_sum_of_bfloat16(const c10::BFloat16* row, int64_t count) {
  __m512d low = _mm512_setzero_pd(), high = low;
  for (int64_t j = 0; j < count; j += 16) {
    const __m512 entries = avx512::load(row + j, avx512::first_of_16(count - j));
    const __m512d first = _mm512_cvtps_pd(_mm512_castps512_ps256(entries)),
                  second = _mm512_cvtps_pd(_mm512_extractf32x8_ps(entries, 1));
    low = _mm512_fmadd_pd(first, first, low);
    high = _mm512_fmadd_pd(second, second, high);
  }
  return _mm512_reduce_add_pd(_mm512_add_pd(low, high));
}

TORCHDION_AVX512 void scale_row_of_bfloat16(c10::BFloat16* row, int64_t count, float factor) {
  const __m512 factors = _mm512_set1_ps(factor);
  for (int64_t j = 0; j < count; j += 16) {
    const __mmask16 mask = avx512::first_of_16(count - j);
    avx512::store(row + j, mask, _mm512_mul_ps(factors, avx512::load(row + j, mask)));
  }
}

double square_sum(const c10::BFloat16* row, int64_t count) {
  return has_bfloat16_products() ? square_sum_of_bfloat16(row, count) : square_sum<c10::BFloat16>(row, count);
}

void scale_row(c10::BFloat16* row, int64_t count, float factor) {
  if (has_bfloat16_products()) return scale_row_of_bfloat16(row, count, factor);
  scale_row<c10::BFloat16>(row, count, factor);
}

#endif

}  // namespace

// Rows have sums of their own, so that the bits of a norm are those of any number of threads.
at::Tensor Operations::frobenius_normalize_(const at::Tensor& X, double slack, const at::Tensor&) {
  if (!X.is_contiguous()) return frobenius_normalize_(X.transpose(1, 2), slack, {});
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
      scale_row(data + (index * rows + first) * cols, many * cols, scale);
    });
  });
  return {};
}

void Operations::add_identity_(const at::Tensor& B, const at::Tensor& A, double a, const at::Tensor& factors,
                               int power) {
  if (!B.is_same(A)) B.copy_(A);
  if (a != 0) B.diagonal(0, 1, 2).add_(a);
  if (factors.defined()) B.mul_(factors.pow(power).view({-1, 1, 1}));
}

}  // namespace torchdion::linalg::cpu
