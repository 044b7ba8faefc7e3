#include "linalg/scale.h"

#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>

#include <cmath>
#include <limits>

namespace torchdion::linalg {

namespace {

// Entries of orthonormal columns of fewer than 2⁶⁴ rows: the largest of a column lies within [2⁻³², 1].
constexpr double kMark = 0x1p+128, kBetween = 0x1p+64;

}  // namespace

at::Tensor largest_entries(const at::Tensor& matrices, at::IntArrayRef dims) {
  return at::linalg_vector_norm(matrices, std::numeric_limits<double>::infinity(), dims, /*keepdim=*/true);
}

at::Tensor scale_of_lengths(const at::Tensor& lengths) {
  const at::Tensor scale = at::ones_like(lengths);
  scale.masked_fill_(lengths.lt(kShortest).logical_and_(lengths.gt(0)), kLengthen);
  return scale.masked_fill_(lengths.gt(kLongest), kShorten);
}

bool may_scale(const at::Tensor& scale) { return !scale.is_cpu() || scale.ne(1).any().item<bool>(); }

at::Tensor rescale_gram_(const at::Tensor& H) {
  // The longest column, which a NaN among the lengths hides. What is 0 may be the square of something.
  const at::Tensor lengths = H.diagonal(0, -2, -1).amax(-1).sqrt_().clamp_min_(std::numeric_limits<double>::min());
  const at::Tensor scale = scale_of_lengths(lengths);
  if (may_scale(scale)) {
    const at::Tensor orthogonal = scale.reciprocal().square_().unsqueeze(1).expand({H.size(0), H.size(1)}).diag_embed();
    H.copy_(at::where(scale.ne(1).view({-1, 1, 1}), orthogonal, H));
  }
  return scale;
}

at::Tensor scale_columns_(const at::Tensor& R, const at::Tensor& scale) {
  if (R.numel() == 0) return at::ones({R.size(0), 1, 1}, R.options());
  const at::Tensor factors = scale.defined() ? scale.view({-1, 1, 1}) : scale_of_lengths(largest_entries(R, {1}));
  if (may_scale(factors)) R.mul_(factors);
  return factors;
}

void mark_(const at::Tensor& P, const at::Tensor& scale) {
  if (!may_scale(scale)) return;
  at::Tensor marks = at::ones_like(scale);
  marks.masked_fill_(scale.gt(1), kMark).masked_fill_(scale.lt(1), 1 / kMark);
  P.mul_(marks.view({-1, 1, 1}));
}

at::Tensor read_mark_(const at::Tensor& P) {
  const at::Tensor largest = largest_entries(P, {1, 2}), scale = at::ones_like(largest), marks = at::ones_like(largest);
  const at::Tensor longer = largest.gt(kBetween), shorter = largest.lt(1 / kBetween).logical_and_(largest.gt(0));
  marks.masked_fill_(longer, 1 / kMark).masked_fill_(shorter, kMark);
  scale.masked_fill_(longer, kLengthen).masked_fill_(shorter, kShorten);
  if (may_scale(marks)) P.mul_(marks);
  return scale.view({-1});
}

}  // namespace torchdion::linalg
