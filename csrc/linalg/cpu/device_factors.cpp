#include <ATen/ops/empty.h>

#include "linalg/cpu/operations.h"
#include "linalg/cpu/rates.h"
#include "linalg/step_numbers.h"

namespace torchdion::linalg::cpu {

at::Tensor Operations::device_factors(const FactorRule& rule, at::TensorOptions options) {
  const FactorRule read = with_multipliers(rule, rule.multipliers);
  const bool left_out = rule.left_out && *rule.left_out != 0;
  const DionFactors factors = dion_factors(rule.mean, rule.shape_factor, read.lr, read.weight_decay, left_out);
  const at::Tensor all = at::empty({4}, options);
  int64_t place = 0;
  for (const double factor : {factors.first, factors.none, factors.update, factors.keep}) all[place++].fill_(factor);
  return all;
}

}  // namespace torchdion::linalg::cpu
