#include "linalg/cholesky_inverse.h"

#include <cmath>

namespace torchdion::linalg {

double least_pivot(at::ScalarType dtype, int64_t rows, int64_t r) {
  const double epsilon = dtype == at::kDouble ? 0x1p-53 : 0x1p-24;
  return epsilon * (16 * std::sqrt(static_cast<double>(rows)) + 4 * static_cast<double>(r));
}

}  // namespace torchdion::linalg
