#include "linalg/add_identity.h"

#include "linalg/cpu/operations.h"

namespace torchdion::linalg::cpu {

void Operations::add_identity_(const at::Tensor& B, const at::Tensor& A, double a, const at::Tensor& factors,
                               int power) {
  if (!B.is_same(A)) B.copy_(A);
  if (a != 0) B.diagonal(0, 1, 2).add_(a);
  if (factors.defined()) B.mul_(factors.pow(power).view({-1, 1, 1}));
}

}  // namespace torchdion::linalg::cpu
