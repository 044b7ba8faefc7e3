#include <ATen/ops/empty.h>
#include <c10/util/BFloat16.h>

#include <cmath>
#include <limits>

#include "linalg/cpu/avx512.h"
#include "linalg/cpu/bfloat16_products.h"
#include "linalg/cpu/operations.h"
#include "linalg/cpu/parallel_rows.h"

namespace torchdion::linalg::cpu {

namespace {

float nearest_bfloat16(float value) {
  const float nearest = c10::BFloat16(value);
  const bool became_infinite = std::isinf(nearest) && std::isfinite(value);
  return became_infinite ? std::copysign(static_cast<float>(std::numeric_limits<c10::BFloat16>::max()), value)
                         : nearest;
}

#if defined(__x86_64__)

// Sixteen columns at a time, as many as there are; returns how many have been rounded.
TORCHDION_AVX512 int64_t round_columns(float* entries, int64_t rows, int64_t cols, float* largest) {
  constexpr int64_t kStep = 16;
  const int64_t rounded = cols / kStep * kStep;
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < rounded; j += kStep) {
      const __m512 x = avx512::nearest_bfloat16(_mm512_loadu_ps(entries + i * cols + j));
      _mm512_storeu_ps(entries + i * cols + j, x);
      if (largest) _mm512_storeu_ps(largest + j, _mm512_max_ps(_mm512_abs_ps(x), _mm512_loadu_ps(largest + j)));
    }
  }
  return rounded;
}

#endif

}  // namespace

void round_to_bfloat16_(float* entries, int64_t rows, int64_t cols, float* largest) {
  int64_t first = 0;
#if defined(__x86_64__)
  if (has_bfloat16_products()) first = round_columns(entries, rows, cols, largest);
#endif
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = first; j < cols; ++j) {
      float& entry = entries[i * cols + j];
      entry = nearest_bfloat16(entry);
      if (largest && std::abs(entry) > largest[j]) largest[j] = std::abs(entry);
    }
  }
}

void Operations::round_operand_(const at::Tensor& P, Precision precision) {
  if (P.scalar_type() != at::kFloat || precision != Precision::medium) return;
  float* entries = P.mutable_data_ptr<float>();
  at::parallel_for(0, P.numel(), kElementsPerThread,
                   [&](int64_t begin, int64_t end) { round_to_bfloat16_(entries + begin, 1, end - begin); });
}

Matrices rounded_to_bfloat16(const Matrices& A, at::Tensor& memory) {
  if (A.dtype == at::kBFloat16) return A;
  memory = at::empty({A.count(), A.rows, A.cols}, at::kFloat);
  Matrices rounded(memory);
  Operations::copy_(rounded, A, 1, {});
  Operations::round_operand_(memory, Precision::medium);
  return rounded;
}

}  // namespace torchdion::linalg::cpu
