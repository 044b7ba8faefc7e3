// The types that matrices are stored in, and the types that kernels compute in.
#pragma once

#include <type_traits>

#include "linalg/cuda/block.h"
#include "linalg/float_bits.h"

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE {

enum class Storage : uint8_t { float64, float32, float16, bfloat16 };

// 16 bits that only load() and store() look into.
struct Half {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

template <class S>
using ComputeType = std::conditional_t<std::is_same_v<S, double>, double, float>;

// What two types are computed in together.
template <class A, class B>
using Wider = decltype(ComputeType<A>() + ComputeType<B>());

// The nearest number of `Kept` explicit mantissa bits, ties to even: 10 of TF32, 7 of BF16. NaN stays NaN.
template <int Kept>
TORCHDION_HOST_DEVICE float round_mantissa(float value) {
  constexpr uint32_t kDropped = 23 - Kept, kMask = (uint32_t{1} << kDropped) - 1;
  const uint32_t bits = bits_of(value);
  if ((bits & 0x7f800000u) == 0x7f800000u) {  // infinite or NaN
    return (bits & 0x007fffffu) == 0 ? value : float_of((bits & ~kMask) | 0x00400000u);
  }
  return float_of((bits + (kMask >> 1) + ((bits >> kDropped) & 1)) & ~kMask);
}

// The same without the bits that are not kept. Infinities and NaN stay.
template <int Kept>
TORCHDION_HOST_DEVICE float truncate_mantissa(float value) {
  constexpr uint32_t kMask = (uint32_t{1} << (23 - Kept)) - 1;
  const uint32_t bits = bits_of(value);
  return (bits & 0x7f800000u) == 0x7f800000u ? value : float_of(bits & ~kMask);
}

TORCHDION_HOST_DEVICE double load(double value) { return value; }
TORCHDION_HOST_DEVICE float load(float value) { return value; }
TORCHDION_HOST_DEVICE float load(BFloat16 value) { return float_of(static_cast<uint32_t>(value.bits) << 16); }

TORCHDION_HOST_DEVICE void store(double& target, double value) { target = value; }
TORCHDION_HOST_DEVICE void store(float& target, float value) { target = value; }
TORCHDION_HOST_DEVICE void store(BFloat16& target, float value) {
  target.bits = static_cast<uint16_t>(bits_of(round_mantissa<7>(value)) >> 16);
}

#ifdef __CUDACC__
TORCHDION_DEVICE float load(Half value) { return __half2float(__ushort_as_half(value.bits)); }
TORCHDION_DEVICE Half nearest_half(float value) { return {__half_as_ushort(__float2half_rn(value))}; }
#else
inline float load(Half value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000) << 16, rest = value.bits & 0x7fff;
  if (rest >= 0x7c00) return float_of(sign | 0x7f800000u | (rest & 0x3ff) << 13);
  // Exact: a half, subnormal or not, read with the exponent of a float is too small by 2¹¹².
  const float magnitude = float_of(rest << 13) * 0x1p112f;
  return float_of(sign | bits_of(magnitude));
}
inline Half nearest_half(float value) {
  const uint32_t bits = bits_of(value), sign = bits >> 16 & 0x8000;
  const float magnitude = float_of(bits & 0x7fffffffu);
  uint32_t rest;
  if (!(magnitude < 65520)) {  // rounds to infinity, or is it, or NaN
    rest = magnitude != magnitude ? 0x7e00 : 0x7c00;
  } else if (magnitude < 0x1p-14f) {
    rest = bits_of(magnitude + 0.5f) & 0x7fff;  // the sum is rounded to a multiple of 2⁻²⁴
  } else {
    const uint32_t rounded = bits_of(magnitude) + 0xfff + (bits_of(magnitude) >> 13 & 1);
    rest = (rounded - (112u << 23)) >> 13;
  }
  return {static_cast<uint16_t>(sign | rest)};
}
#endif

TORCHDION_HOST_DEVICE bool is_infinite(Half value) { return (value.bits & 0x7fff) == 0x7c00; }
TORCHDION_HOST_DEVICE bool is_infinite(BFloat16 value) { return (value.bits & 0x7fff) == 0x7f80; }
TORCHDION_HOST_DEVICE bool is_infinite(float value) { return (bits_of(value) & 0x7fffffffu) == 0x7f800000u; }
TORCHDION_HOST_DEVICE void make_largest(Half& infinite) { --infinite.bits; }  // of its sign
TORCHDION_HOST_DEVICE void make_largest(BFloat16& infinite) { --infinite.bits; }
TORCHDION_HOST_DEVICE void make_largest(float& infinite) { infinite = float_of(bits_of(infinite) - 1); }

// A finite number beyond the range of what it is stored in becomes the largest there, as on the CPU (cpu/convert.h).
TORCHDION_DEVICE void store(Half& target, float value) {
  target = nearest_half(value);
  if (is_infinite(target) && value - value == 0) make_largest(target);
}
template <class S>
TORCHDION_DEVICE void store(S& target, double value) {
  store(target, static_cast<float>(value));
  if (is_infinite(target) && value - value == 0) make_largest(target);
}

// Calls body with a value of the type.
template <class Body>
void dispatch(Storage storage, const Body& body) {
  switch (storage) {
    case Storage::float64:
      return body(double());
    case Storage::float32:
      return body(float());
    case Storage::float16:
      return body(Half());
    case Storage::bfloat16:
      return body(BFloat16());
  }
}

// The same with the type that entries are computed in.
template <class Body>
void dispatch_computed(Storage storage, const Body& body) {
  storage == Storage::float64 ? body(double()) : body(float());
}

}  // namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE
