#include "linalg/noise.h"

#include <cmath>

namespace torchdion::linalg {

at::Tensor relative_noise(const at::Tensor& lengths, Noise noise) {
  const at::Tensor mean = lengths.square().mean(-1, /*keepdim=*/true).sqrt_();
  return mean.div(lengths).mul_(noise.mean).clamp_(noise.own, 1).masked_fill_(lengths.eq(0), 1);
}

double rounding_noise(at::ScalarType dtype, int64_t inner, Precision precision) {
  const double epsilon = dtype == at::kDouble ? 0x1p-53 : 0x1p-24;
  const double of_sums = epsilon * (inner == 0 ? 4 : 8 + std::sqrt(static_cast<double>(inner)) / 4);
  if (dtype == at::kDouble || precision == Precision::highest) return of_sums;
  const double last_bit = precision == Precision::high ? 0x1p-10 : 0x1p-7;  // that tensor cores read
  if (inner == 0) return of_sums + last_bit / 2;
  // Tensor cores may drop what they do not read rather than round it, and so each sum that they make of 8 products.
  return epsilon * static_cast<double>(inner) / 8 + last_bit;
}

double signal_margin(at::ScalarType dtype, Precision precision) {
  if (dtype == at::kDouble) return 0x1p+30;
  return precision == Precision::highest ? 0x1p+8 : 2;
}

}  // namespace torchdion::linalg
