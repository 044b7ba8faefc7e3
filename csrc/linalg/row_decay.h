#pragma once

namespace torchdion::linalg {

// What rows that are taken leave: factor · themselves, but for matrices whose number in `unchanged` is there and not 0,
// and nowhere where `left_out` is there and not 0.
struct RowDecay {
  double factor = 1;
  const float* left_out = nullptr;
  const float* unchanged = nullptr;
};

}  // namespace torchdion::linalg
