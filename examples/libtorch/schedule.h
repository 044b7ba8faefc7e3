// The learning rate's shape over a run: warm-up, stable, decay (WSD).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace gpt {

struct Schedule {
  int64_t steps;
  double warmup;  // share of the steps over which the factor rises
  double decay;   // share of the steps over which it falls, towards zero one step after the last

  // The factor on the learning rate at step 0 … steps - 1.
  double factor(int64_t step) const {
    const double rising = std::nearbyint(warmup * static_cast<double>(steps));
    const double falling = std::nearbyint(decay * static_cast<double>(steps));
    const auto done = static_cast<double>(step + 1);
    const auto left = static_cast<double>(steps - step);
    return std::min({1.0, done / std::max(rising, 1.0), left / std::max(falling, 1.0)});
  }
};

}  // namespace gpt
