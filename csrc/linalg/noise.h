// How much of a column is rounding, and how long one must be to count as signal.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchdion/options.h>

#include "linalg/noise_model.h"

namespace torchdion::linalg {

// For columns of P with `rows` entries, `live` of which carry signal before them.
NoiseLeft<double> noise_left_of(int64_t rows, int64_t live);

// Columns without signal. In the memory of P's device, or null.
struct SignalCounts {
  int64_t* without_signal = nullptr;  // becomes larger by their number
  int64_t* in_margin = nullptr;       // by how many of them were longer than the noise, but not by the margin
};

// [count, r] FP64: the noise of columns of these lengths ([count, r] FP64), relative to each.
at::Tensor relative_noise(const at::Tensor& lengths, Noise noise);

// The noise of B Q, whose sums have `inner` terms, where `steps` roundings are in the momentum of B.
Noise noise_of_step(at::ScalarType dtype, int64_t inner, Precision precision, int64_t steps,
                    const float* steps_before = nullptr);

// The rounding noise of the columns of a product with sums of `inner` terms, ε (8 + sqrt(inner) / 4): twice to
// four times what products of low-rank matrices show (benchmarks/noise.py). With `inner` = 0, that of given data, 4 ε.
// Tensor cores and BF16 products round operands. Given data differ from what is read by half a unit in the last place
// at most. In a product the root mean square counts: 0.21 units of B's entries and as much of P's own, whether they are
// rounded or truncated (the mean of truncation is a factor, which no direction feels). Sums of every 8 terms may be
// truncated: ε inner / 8.
double rounding_noise(at::ScalarType dtype, int64_t inner, Precision precision = Precision::highest);

// What rounding in `dtype` leaves of a zero pivot of an equilibrated r×r Gram matrix of sums over so many rows.
double least_pivot(at::ScalarType dtype, int64_t rows, int64_t r);

}  // namespace torchdion::linalg
