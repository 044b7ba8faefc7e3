#include "linalg/cpu/round_operand.h"

#include <ATen/ops/empty.h>
#include <c10/util/BFloat16.h>

#include <cmath>
#include <limits>

#include "linalg/cpu/operations.h"
#include "linalg/cpu/parallel_rows.h"

namespace torchdion::linalg::cpu {

void round_to_bfloat16_(float* entries, int64_t count) {
  const float largest = std::numeric_limits<c10::BFloat16>::max();
  for (int64_t i = 0; i < count; ++i) {
    const float value = entries[i], nearest = c10::BFloat16(value);
    const bool became_infinite = std::isinf(nearest) && std::isfinite(value);
    entries[i] = became_infinite ? std::copysign(largest, value) : nearest;
  }
}

void Operations::round_operand_(const at::Tensor& P, Precision precision) {
  if (P.scalar_type() != at::kFloat || precision != Precision::medium) return;
  float* entries = P.mutable_data_ptr<float>();
  at::parallel_for(0, P.numel(), kElementsPerThread,
                   [&](int64_t begin, int64_t end) { round_to_bfloat16_(entries + begin, end - begin); });
}

Matrices rounded_to_bfloat16(const Matrices& A, at::Tensor& memory) {
  if (A.dtype == at::kBFloat16) return A;
  memory = at::empty({A.count(), A.rows, A.cols}, at::kFloat);
  Matrices rounded(memory);
  Operations::copy_(rounded, A, 1, nullptr);
  Operations::round_operand_(memory, Precision::medium);
  return rounded;
}

}  // namespace torchdion::linalg::cpu
