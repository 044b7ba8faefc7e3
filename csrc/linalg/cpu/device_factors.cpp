#include <ATen/ops/empty.h>

#include "linalg/cpu/operations.h"
#include "linalg/cpu/rates.h"
#include "linalg/step_numbers.h"

namespace torchdion::linalg::cpu {

at::Tensor Operations::device_factors(const FactorRule& rule, at::TensorOptions options) {
  const UpdateFactors factors = update_factors(rule.shape_factor, rates_of(rule), rule.frozen.all());
  const at::Tensor all = at::empty({2}, options);
  all[0].fill_(factors.update);
  all[1].fill_(factors.keep);
  return all;
}

}  // namespace torchdion::linalg::cpu
