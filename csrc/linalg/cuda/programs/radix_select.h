// The k-th largest of the magnitudes that a block reads, eight bits at a time from the highest.
#pragma once

#include "linalg/cuda/launch.h"
#include "linalg/float_bits.h"

namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE {

// What a block shares of it, which has a thread for each bin. The k-th largest is `threshold` afterwards, and `missing`
// says how many magnitudes that equal it are among the k largest.
template <class Bits>
struct RadixSelect {
  static constexpr int kDigitBits = 8, kDigits = 1 << kDigitBits, kBits = 8 * sizeof(Bits), threads = kDigits;

  int64_t histogram[kDigits];
  int64_t missing;
  Bits threshold;  // its digits as far as they are known

  // One thread says what is to be found, in a phase before.
  TORCHDION_DEVICE void begin(int64_t k) {
    missing = k;
    threshold = 0;
  }

  // magnitude(i): the bits of the i-th of `count`.
  template <class Block, class Read>
  TORCHDION_DEVICE void find(Block& block, int64_t count, const Read& magnitude) {
    for (int shift = kBits - kDigitBits; shift >= 0; shift -= kDigitBits) find_digit(block, count, magnitude, shift);
  }

 private:
  template <class Block, class Read>
  TORCHDION_DEVICE void find_digit(Block& block, int64_t count, const Read& magnitude, int shift) {
    block.each([&](int t) { histogram[t] = 0; });
    block.each([&](int t) {
      const int known = shift + kDigitBits;
      for (int64_t i = t; i < count; i += threads) {
        const Bits bits = magnitude(i);
        if (known < kBits && bits >> known != threshold >> known) continue;
        block.add(&histogram[static_cast<int>(bits >> shift) & (kDigits - 1)], 1);
      }
    });
    once(block, [&] {
      int digit = kDigits - 1;
      while (histogram[digit] < missing) missing -= histogram[digit--];
      threshold |= static_cast<Bits>(digit) << shift;
    });
  }
};

}  // namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE
