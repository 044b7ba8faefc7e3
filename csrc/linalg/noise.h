// How much of a column is rounding, and how long one must be to count as signal.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchdion/options.h>

namespace torchdion::linalg {

// The part of each column of P that is rounding.
struct Noise {
  double own = 0;     // relative to its length
  double mean = 0;    // relative to the root mean square of all lengths: what a product has, where columns may cancel
  double margin = 1;  // a column is signal only if it is longer than the noise by this factor
};

// Columns without signal. In the memory of P's device, or null.
struct SignalCounts {
  int64_t* without_signal = nullptr;  // becomes larger by their number
  int64_t* in_margin = nullptr;       // by how many of them were longer than the noise, but not by the margin
};

// [count, r] FP64: the noise of columns of these lengths ([count, r] FP64), relative to each, at most 1.
at::Tensor relative_noise(const at::Tensor& lengths, Noise noise);

// How much longer than the noise of one product a column of B Q must be to count as signal. The momentum in B has noise
// of its own, because it is rounded at every step and what P does not span never decays: in units of rounding_noise()
// B Q has at most 1.4 of it after one step, 2.4 after 200, and three times as much whenever ten times as many follow
// (benchmarks/noise.py): 50 after 100,000. The direction of what is kept is known to 1 / margin, on whatever layout: 2⁸
// in FP32, which drops columns below some 2·10⁻⁴ of the root mean square of all, and 2³⁰ in FP64, 10⁻⁶. Rounded
// operands leave no room for that: 2 drops columns below 2⁻⁹ at Precision::high and 2⁻⁶ at medium, and no layout agrees
// with another about the direction of the shortest that are kept.
double signal_margin(at::ScalarType dtype, Precision precision);

// The rounding noise of the columns of a product with sums of `inner` terms, ε (8 + sqrt(inner) / 4): twice to
// four times what products of low-rank matrices show (benchmarks/noise.py). With `inner` = 0, that of given data, 4 ε.
// Rounded operands add their own: half a unit in the last place of what tensor cores read where they have been rounded
// to nearest, as given data are, a whole one in products, whose operands may be truncated, and so may be their sums of
// every 8 terms: ε inner / 8.
double rounding_noise(at::ScalarType dtype, int64_t inner, Precision precision = Precision::highest);

}  // namespace torchdion::linalg
