// Normally distributed numbers as a pure function of a place in an infinite matrix: Box–Muller on Philox, with the same
// bits on every CPU and GPU.
//
// IEEE 754 fixes every bit of a sum, a product and a square root, but none of a logarithm or a sine: those of glibc and
// CUDA differ in their last bits. Here they are polynomials. What remains is that a compiler may contract a product and
// a sum into one operation that rounds once. CUDA's intrinsics forbid it on the device, -ffp-contract=off on the host
// (CMakeLists.txt).
//
// Coefficients: the polynomial that interpolates the function named at the Chebyshev nodes of the interval named (by
// mpmath, in 40 digits), each coefficient rounded to FP32.
#pragma once

#include <cmath>
#include <cstdint>

#include "linalg/float_bits.h"
#include "linalg/host_device.h"

namespace torchdion::linalg {

// Philox-4x32-10 (Salmon et al., SC 2011): random numbers as a pure function of a key and a counter, so that any rank
// can make any piece of a random matrix by itself.
struct PhiloxBlock {
  uint32_t words[4];
};

TORCHDION_HOST_DEVICE PhiloxBlock philox(PhiloxBlock counter, uint64_t key) {
  uint32_t key0 = static_cast<uint32_t>(key), key1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    uint32_t* const x = counter.words;
    const uint64_t product0 = uint64_t{0xD2511F53} * x[0], product1 = uint64_t{0xCD9E8D57} * x[2];
    counter = {{static_cast<uint32_t>(product1 >> 32) ^ x[1] ^ key0, static_cast<uint32_t>(product1),
                static_cast<uint32_t>(product0 >> 32) ^ x[3] ^ key1, static_cast<uint32_t>(product0)}};
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  return counter;
}

namespace uncontracted {

TORCHDION_HOST_DEVICE float sum(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fadd_rn(a, b);
#else
  return a + b;
#endif
}

TORCHDION_HOST_DEVICE float product(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}

TORCHDION_HOST_DEVICE float square_root(float a) {
#ifdef __CUDA_ARCH__
  return __fsqrt_rn(a);
#else
  return sqrtf(a);
#endif
}

// c₀ + c₁ x + c₂ x² + …
TORCHDION_HOST_DEVICE float polynomial(float, float constant) { return constant; }
template <class... Coefficients>
TORCHDION_HOST_DEVICE float polynomial(float x, float constant, Coefficients... others) {
  return sum(constant, product(x, polynomial(x, others...)));
}

}  // namespace uncontracted

// log x of a normal number x > 0, to 0.9 ulp; exactly 0 at 1.
TORCHDION_HOST_DEVICE float logarithm(float x) {
  using namespace uncontracted;
  // x = 2ᵉ (1 + f) with 1 + f in [√½, √2), so that e log 2 and log(1 + f) do not cancel near x = 1.
  constexpr uint32_t kRootOfHalf = 0x3f3504f3;  // the bits of √½
  const uint32_t steps = bits_of(x) - kRootOfHalf;
  const float e = static_cast<float>(static_cast<int32_t>(steps) >> 23);
  const float f = sum(float_of((steps & 0x007fffff) + kRootOfHalf), -1);  // exact
  // (log(1 + f) − f + f²/2) / f³ on [√½ − 1, √2 − 1], to 3.1e-8.
  const float cubic = polynomial(f, 0x1.555554p-2f, -0x1.fffffcp-3f, 0x1.999d5ap-3f, -0x1.555b4ap-3f, 0x1.23d21ap-3f,
                                 -0x1.fcf4c6p-4f, 0x1.dea282p-4f, -0x1.d635bcp-4f, 0x1.1d8ea6p-4f);
  constexpr float kLog2 = 0x1.62e4p-1f, kRestOfLog2 = 0x1.7f7d1cp-20f;  // e kLog2 is exact
  const float square = product(f, f);
  const float corrections = sum(product(product(square, f), cubic), product(e, kRestOfLog2));
  return sum(product(e, kLog2), sum(f, sum(corrections, product(-0.5f, square))));
}

struct Direction {
  float cosine, sine;
};

// cos and sin of 2π · turn / 2³², to 2.1 ulp.
TORCHDION_HOST_DEVICE Direction direction(uint32_t turn) {
  using namespace uncontracted;
  // The angle is that of the nearest axis plus x π/4 with x in [−1, 1). Integers find both without rounding.
  const uint32_t axis = (turn + (uint32_t{1} << 29)) >> 30;
  const float x = product(static_cast<float>(static_cast<int32_t>(turn - (axis << 30))), 0x1p-29f);
  const float z = product(x, x);
  // sin(π/4 √z) / √z on [0, 1], to 3.9e-9: π/4 is in two parts, because one FP32 number holds it to 2.2e-8.
  const float sine = product(
      x, sum(0x1.921fb6p-1f, polynomial(z, -0x1.a1114ap-26f, -0x1.4abbbap-4f, 0x1.465ec4p-9f, -0x1.2d9b4p-15f)));
  // (cos(π/4 √z) − 1) / z on [0, 1], to 9.2e-9.
  const float cosine = polynomial(z, 1.0f, -0x1.3bd3ccp-2f, 0x1.03c1eap-6f, -0x1.55cb98p-12f, 0x1.db6492p-19f);
  const bool is_upright = axis % 2 == 1;
  const float across = is_upright ? sine : cosine, up = is_upright ? cosine : sine;
  return {axis == 1 || axis == 2 ? -across : across, axis >= 2 ? -up : up};
}

inline constexpr int kNormalsOfBlock = 4;  // neighbouring columns that one Philox block makes

struct Normals {
  float values[kNormalsOfBlock];
};

// Their absolute values are at most 6.66: √(2 log 2³²).
TORCHDION_HOST_DEVICE Normals normals(uint64_t seed, uint64_t stream, int64_t row, int64_t column_block) {
  using namespace uncontracted;
  const PhiloxBlock bits = philox({{static_cast<uint32_t>(row), static_cast<uint32_t>(column_block),
                                    static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)}},
                                  seed);
  Normals out;
  for (int pair = 0; pair < 2; ++pair) {
    const float uniform = product(sum(static_cast<float>(bits.words[2 * pair]), 1), 0x1p-32f);  // in (0, 1]
    const float radius = square_root(product(-2, logarithm(uniform)));
    const Direction towards = direction(bits.words[2 * pair + 1]);
    out.values[2 * pair] = product(radius, towards.cosine);
    out.values[2 * pair + 1] = product(radius, towards.sine);
  }
  return out;
}

}  // namespace torchdion::linalg
