#include "linalg/noise.h"

#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <cmath>

namespace torchdion::linalg {

namespace {

// Rounding B's entries and P's, in units of the last place that is read: each error has a root mean square of
// sqrt(3 / (8 ln 2) / 12) = 0.21 where mantissas are spread evenly by their logarithms.
constexpr double kTwoRoundings = 0.3;

// Each step rounds the momentum, and what P does not span never decays: B Q has at most 25 ε of it after 200 steps
// (benchmarks/noise.py).
constexpr double kMomentumNoise = 1.65;

// Columns must be longer than what earlier steps have left by this factor, however large the margin of a product is.
constexpr double kMarginOfMomentum = 2;

double unit_roundoff(at::ScalarType dtype) { return dtype == at::kDouble ? 0x1p-53 : 0x1p-24; }

// FP32's noise is an upper bound of two to four times what products show, that of rounded operands is their root mean
// square. FP64 asks for 2³⁰ of its products: the direction of what is kept is then known to 10⁻⁹, and runs on unlike
// layouts agree so far. It drops columns below some 10⁻⁶ of the root mean square of all.
double signal_margin(at::ScalarType dtype, Precision precision) {
  if (dtype == at::kDouble) return 0x1p+30;
  return precision == Precision::highest ? 2 : 1.25;
}

}  // namespace

at::Tensor relative_noise(const at::Tensor& lengths, Noise noise) {
  const double of_mean = noise.total_mean();
  const int64_t count = lengths.size(0), r = lengths.size(1);
  const at::Tensor given = lengths.cpu().contiguous(), all = at::empty_like(given);
  for (int64_t i = 0; i < count; ++i) {
    const double* length = given.const_data_ptr<double>() + i * r;
    double* relative = all.mutable_data_ptr<double>() + i * r;
    double squares = 0;
    for (int64_t j = 0; j < r; ++j) squares += length[j] * length[j];
    const double mean = of_mean * std::sqrt(squares / static_cast<double>(r));
    for (int64_t j = 0; j < r; ++j) {
      relative[j] = length[j] == 0 ? kLargestNoise : std::min(std::max(mean / length[j], noise.own), kLargestNoise);
    }
  }
  return all.to(lengths.device());
}

NoiseLeft<double> noise_left_of(int64_t rows, int64_t live) {
  const auto all = static_cast<double>(rows);
  return noise_left(all, 1 / std::sqrt(all), static_cast<double>(live));
}

Noise noise_of_step(at::ScalarType dtype, int64_t inner, Precision precision, int64_t steps,
                    const float* steps_before) {
  const double rounding = rounding_noise(dtype, inner, precision), margin = signal_margin(dtype, precision);
  return {.own = rounding,
          .mean = rounding,
          .margin = margin,
          .momentum = kMomentumNoise * unit_roundoff(dtype) * std::min(1.0, kMarginOfMomentum / margin),
          .steps = steps,
          .steps_before = steps_before};
}

double rounding_noise(at::ScalarType dtype, int64_t inner, Precision precision) {
  const double epsilon = unit_roundoff(dtype);
  const double of_sums = epsilon * (inner == 0 ? 4 : 8 + std::sqrt(static_cast<double>(inner)) / 4);
  if (dtype == at::kDouble || precision == Precision::highest) return of_sums;
  const double last_bit = precision == Precision::high ? 0x1p-10 : 0x1p-7;  // that tensor cores read
  if (inner == 0) return of_sums + last_bit / 2;
  return of_sums + epsilon * static_cast<double>(inner) / 8 + kTwoRoundings * last_bit;
}

double least_pivot(at::ScalarType dtype, int64_t rows, int64_t r) {
  const auto terms = static_cast<double>(rows), columns = static_cast<double>(r);
  if (dtype == at::kDouble) return 0x1p-53 * (16 * std::sqrt(terms) + 4 * columns);
  // Tensor cores may truncate a sum after every 8 terms, all the same way; other roundings are independent.
  return 0x1p-24 * (terms / 8 + 4 * std::sqrt(terms) + 4 * std::sqrt(columns));
}

}  // namespace torchdion::linalg
