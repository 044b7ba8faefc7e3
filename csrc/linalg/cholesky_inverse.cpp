#include "linalg/cholesky_inverse.h"

#include <cmath>

namespace torchdion::linalg {

double least_pivot(at::ScalarType dtype, int64_t rows, int64_t r) {
  const auto terms = static_cast<double>(rows), columns = static_cast<double>(r);
  if (dtype == at::kDouble) return 0x1p-53 * (16 * std::sqrt(terms) + 4 * columns);
  // Tensor cores may truncate a sum after every 8 terms, all the same way; other roundings are independent.
  return 0x1p-24 * (terms / 8 + 4 * std::sqrt(terms) + 4 * std::sqrt(columns));
}

}  // namespace torchdion::linalg
