#include "linalg/row_factors.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>

#include <vector>

#include "linalg/cpu/operations.h"

namespace torchdion::linalg::cpu {

RowFactors Operations::row_factors_(const at::Tensor& squares, const Matrices& v, const at::Tensor& source,
                                    const VarianceRule& rule) {
  const at::Tensor old_v = at::empty({v.count(), v.rows}, at::kDouble);
  copy_(Matrices(old_v.unsqueeze(2)), v, 1, {});
  at::Tensor of_rows = squares, chosen;
  if (source.defined()) {
    chosen = source.ge(0);
    of_rows = at::where(chosen, squares.gather(1, source.clamp_min(0).to(at::kLong)), 0.);
  }
  at::Tensor new_v = old_v * rule.beta2 + of_rows * ((1 - rule.beta2) / static_cast<double>(rule.n));
  at::Tensor factors = (new_v.sqrt() + VarianceRule::kEpsilon).reciprocal();
  if (chosen.defined()) {
    new_v = at::where(chosen, new_v, old_v);
    factors = factors * chosen;
  }
  copy_(v, Matrices(new_v.unsqueeze(2)), 1, rule.frozen);
  return {factors, at::stack({of_rows.sum(1), (of_rows * factors.square()).sum(1)}, 1)};
}

at::Tensor Operations::keep_norms(const RowFactors& rows, at::ScalarType dtype) {
  const at::Tensor after = rows.norms.select(1, 1);
  const at::Tensor scale = (rows.norms.select(1, 0) / after).sqrt().masked_fill(after.eq(0), 0);
  return (rows.factors * scale.unsqueeze(1)).to(dtype);
}

}  // namespace torchdion::linalg::cpu
