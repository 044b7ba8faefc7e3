#include "linalg/cpu/narrow_products.h"

#include <algorithm>

#include "linalg/cpu/convert.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define TORCHDION_AVX2 __attribute__((target("avx2,fma")))
#endif

namespace torchdion::linalg::cpu {

#if defined(__x86_64__)

namespace {

constexpr int64_t kLanes = 8;    // numbers of a vector
constexpr int64_t kInner = 256;  // terms of a sum before it is added to C: so many rows of A's columns stay cached

// Columns of B, `width` of them, as rows of whole vectors: zeros beyond the last.
void pack(float* panel, const Block<const float>& B, int64_t inner, int64_t width, int64_t padded) {
  if (width < padded) std::fill_n(panel, inner * padded, 0.0F);
  for (int64_t l = 0; l < inner; ++l) {
    const float* row = B.data + l * B.row_stride;
    for (int64_t j = 0; j < width; ++j) panel[l * padded + j] = row[j * B.col_stride];
  }
}

TORCHDION_AVX2 inline void store(float* c, __m256 sum, int64_t count, float alpha, float beta) {
  const __m256 scaled = _mm256_mul_ps(_mm256_set1_ps(alpha), sum);
  if (count >= kLanes) {
    _mm256_storeu_ps(c, beta == 0 ? scaled : _mm256_fmadd_ps(_mm256_set1_ps(beta), _mm256_loadu_ps(c), scaled));
    return;
  }
  float entries[kLanes];
  _mm256_storeu_ps(entries, scaled);
  for (int64_t j = 0; j < count; ++j) c[j] = beta == 0 ? entries[j] : __builtin_fmaf(beta, c[j], entries[j]);
}

// Some rows of C, and as many columns as so many vectors hold at most: C ← α A panel + β C.
template <int Rows, int Vectors>
TORCHDION_AVX2 void multiply(Block<float> C, Block<const float> A, const float* panel, int64_t inner, int64_t cols,
                             float alpha, float beta) {
  __m256 sums[Rows][Vectors];
#pragma GCC unroll 16
  for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < Vectors; ++v) sums[i][v] = _mm256_setzero_ps();
  }
  for (int64_t l = 0; l < inner; ++l) {
    const float *a = A.data + l * A.col_stride, *b = panel + l * Vectors * kLanes;
    __m256 row[Vectors];
#pragma GCC unroll 2
    for (int v = 0; v < Vectors; ++v) row[v] = _mm256_loadu_ps(b + v * kLanes);
#pragma GCC unroll 16
    for (int i = 0; i < Rows; ++i) {
      const __m256 entry = _mm256_broadcast_ss(a + i * A.row_stride);
#pragma GCC unroll 2
      for (int v = 0; v < Vectors; ++v) sums[i][v] = _mm256_fmadd_ps(entry, row[v], sums[i][v]);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < Vectors; ++v) {
      store(C.data + i * C.row_stride + v * kLanes, sums[i][v], cols - v * kLanes, alpha, beta);
    }
  }
}

// A block of Rows rows has as many sums as a processor adds to at a time.
template <int Rows, int Vectors>
void multiply_rows(Block<float> C, Block<const float> A, const float* panel, int64_t rows, int64_t cols, int64_t inner,
                   float alpha, float beta) {
  for (int64_t begin = 0; begin < inner; begin += kInner) {
    const int64_t terms = std::min(kInner, inner - begin);
    const float* b = panel + begin * Vectors * kLanes;
    const float kept = begin == 0 ? beta : 1;
    int64_t row = 0;
    for (; row + Rows <= rows; row += Rows) {
      multiply<Rows, Vectors>(C.at(row, 0), A.at(row, begin), b, terms, cols, alpha, kept);
    }
    for (; row < rows; ++row) multiply<1, Vectors>(C.at(row, 0), A.at(row, begin), b, terms, cols, alpha, kept);
  }
}

}  // namespace

bool is_narrow(int64_t cols, int64_t inner) {
  // With vectors of 16 numbers BLAS is the faster one earlier.
  static const int64_t widest = !__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") ? 0
                                : __builtin_cpu_supports("avx512f")                               ? 16
                                                                                                  : 32;
  return cols <= widest && inner > 0;
}

void narrow_gemm(Block<float> C, Block<const float> A, Block<const float> B, int64_t rows, int64_t cols, int64_t inner,
                 float alpha, float beta) {
  Scratch<float> panel(inner * 2 * kLanes);
  for (int64_t col = 0; col < cols; col += 2 * kLanes) {
    const int64_t width = std::min(2 * kLanes, cols - col);
    if (width <= kLanes) {
      pack(panel.data(), B.at(0, col), inner, width, kLanes);
      multiply_rows<10, 1>(C.at(0, col), A, panel.data(), rows, width, inner, alpha, beta);
    } else {
      pack(panel.data(), B.at(0, col), inner, width, 2 * kLanes);
      multiply_rows<6, 2>(C.at(0, col), A, panel.data(), rows, width, inner, alpha, beta);
    }
  }
}

#else

bool is_narrow(int64_t /*cols*/, int64_t /*inner*/) { return false; }

void narrow_gemm(Block<float> C, Block<const float> A, Block<const float> B, int64_t rows, int64_t cols, int64_t inner,
                 float alpha, float beta) {
  gemm(C, A, B, rows, cols, inner, alpha, beta);
}

#endif

}  // namespace torchdion::linalg::cpu
