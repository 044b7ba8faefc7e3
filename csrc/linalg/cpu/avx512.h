// Sixteen numbers at a time, for functions that run only where a processor has AVX-512 with BF16: the library itself is
// compiled for any x86-64.
#pragma once

#include "linalg/cpu/bfloat16_products.h"

#if defined(__x86_64__)

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <immintrin.h>

#include <cstdint>

#define TORCHDION_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")))

namespace torchdion::linalg::cpu::avx512 {

inline __mmask16 first_of_16(int64_t count) {
  return static_cast<__mmask16>(count >= 16 ? 0xffffU : (1U << (count < 0 ? 0 : count)) - 1);
}

// Finite numbers that round beyond the range of BF16 lose their last bits instead, which makes them its largest.
TORCHDION_AVX512 inline __m512 within_bfloat16(__m512 x) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i beyond =
      _mm512_sub_epi32(_mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff)), _mm512_set1_epi32(0x7f7f8000));
  const __mmask16 is_beyond = _mm512_cmplt_epu32_mask(beyond, _mm512_set1_epi32(0x8000));
  return _mm512_castsi512_ps(
      _mm512_mask_and_epi32(bits, is_beyond, bits, _mm512_set1_epi32(static_cast<int>(0xffff0000))));
}

// Keeps numbers below 2⁻¹²⁶, which the processor's own conversion does not.
TORCHDION_AVX512 inline __m512 nearest_bfloat16(__m512 x) {
  const __m512i bits = _mm512_castps_si512(within_bfloat16(x));
  const __m512i last = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(last, _mm512_set1_epi32(0x7fff)));
  const __m512i kept = _mm512_and_si512(rounded, _mm512_set1_epi32(static_cast<int>(0xffff0000)));
  const __mmask16 is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  return _mm512_mask_or_ps(_mm512_castsi512_ps(kept), is_nan, x, x);
}

TORCHDION_AVX512 inline __m512 load(const float* from, __mmask16 mask) { return _mm512_maskz_loadu_ps(mask, from); }

TORCHDION_AVX512 inline __m512 load(const c10::BFloat16* from, __mmask16 mask) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, from));
  return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

TORCHDION_AVX512 inline __m512 load(const c10::Half* from, __mmask16 mask) {
  return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, from));
}

TORCHDION_AVX512 inline void store(float* to, __mmask16 mask, __m512 x) { _mm512_mask_storeu_ps(to, mask, x); }

TORCHDION_AVX512 inline void store(double* to, __mmask16 mask, __m512 x) {
  _mm512_mask_storeu_pd(to, static_cast<__mmask8>(mask & 0xff), _mm512_cvtps_pd(_mm512_castps512_ps256(x)));
  _mm512_mask_storeu_pd(to + 8, static_cast<__mmask8>(mask >> 8), _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1)));
}

inline __mmask32 first_of_32(int64_t count) {
  return static_cast<__mmask32>(count >= 32 ? ~0U : (1U << (count < 0 ? 0 : count)) - 1);
}

TORCHDION_AVX512 inline void store_32(c10::BFloat16* to, __mmask32 mask, __m512 low, __m512 high) {
  const __m512bh both = _mm512_cvtne2ps_pbh(within_bfloat16(high), within_bfloat16(low));
  _mm512_mask_storeu_epi16(to, mask, reinterpret_cast<__m512i>(both));
}

TORCHDION_AVX512 inline void store(c10::BFloat16* to, __mmask16 mask, __m512 x) {
  _mm256_mask_storeu_epi16(to, mask, reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(within_bfloat16(x))));
}

// Finite numbers beyond FP16 are stored as its largest.
TORCHDION_AVX512 inline void store(c10::Half* to, __mmask16 mask, __m512 x) {
  const __m512i magnitude = _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff));
  const __mmask16 is_finite = _mm512_cmplt_epu32_mask(magnitude, _mm512_set1_epi32(0x7f800000));
  const __m512 largest = _mm512_set1_ps(65504);
  x = _mm512_mask_min_ps(x, is_finite, x, largest);
  x = _mm512_mask_max_ps(x, is_finite, x, _mm512_sub_ps(_mm512_setzero_ps(), largest));
  _mm256_mask_storeu_epi16(to, mask, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

// Sixteen rows of sixteen words become the columns.
TORCHDION_AVX512 inline void transpose(__m512i (&rows)[16]) {
  __m512i pairs[16];
  for (int i = 0; i < 16; i += 2) {
    pairs[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    pairs[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  // rows[4 b + c]: of rows 4 b to 4 b + 3 columns c, c + 4, c + 8 and c + 12, one in each quarter
  for (int b = 0; b < 16; b += 4) {
    rows[b] = _mm512_unpacklo_epi64(pairs[b], pairs[b + 2]);
    rows[b + 1] = _mm512_unpackhi_epi64(pairs[b], pairs[b + 2]);
    rows[b + 2] = _mm512_unpacklo_epi64(pairs[b + 1], pairs[b + 3]);
    rows[b + 3] = _mm512_unpackhi_epi64(pairs[b + 1], pairs[b + 3]);
  }
  for (int c = 0; c < 4; ++c) {
    const __m512i even_low = _mm512_shuffle_i32x4(rows[c], rows[c + 4], 0x88),
                  odd_low = _mm512_shuffle_i32x4(rows[c], rows[c + 4], 0xdd),
                  even_high = _mm512_shuffle_i32x4(rows[c + 8], rows[c + 12], 0x88),
                  odd_high = _mm512_shuffle_i32x4(rows[c + 8], rows[c + 12], 0xdd);
    pairs[c] = _mm512_shuffle_i32x4(even_low, even_high, 0x88);
    pairs[c + 8] = _mm512_shuffle_i32x4(even_low, even_high, 0xdd);
    pairs[c + 4] = _mm512_shuffle_i32x4(odd_low, odd_high, 0x88);
    pairs[c + 12] = _mm512_shuffle_i32x4(odd_low, odd_high, 0xdd);
  }
  for (int i = 0; i < 16; ++i) rows[i] = pairs[i];
}

// f(), compiled for such processors.
template <class F>
TORCHDION_AVX512 auto call(const F& f) {
  return f();
}

}  // namespace torchdion::linalg::cpu::avx512

#endif

namespace torchdion::linalg::cpu {

// f(), sixteen entries at a time where the processor can. For that f, and the loops that it calls, are always inlined.
template <class F>
auto with_wide_vectors(const F& f) {
#if defined(__x86_64__)
  if (has_bfloat16_products()) return avx512::call(f);
#endif
  return f();
}

}  // namespace torchdion::linalg::cpu
