#include "linalg/cpu/bfloat16_panels.h"

#include <c10/util/Exception.h>

#include "linalg/cpu/avx512.h"

namespace torchdion::linalg::cpu {

Operand operand_of(const Matrices& A, int64_t index) {
  return {A.data[index], A.rows, A.cols, A.row_stride, A.col_stride, A.dtype == at::kBFloat16};
}

#if defined(__x86_64__)

namespace {

constexpr int64_t kBlock = 16;  // outer entries, and pairs of inner ones, that are packed at a time

// Reads blocks of 16 outer entries and 32 inner ones as 16×16 words, each a pair of inner entries.
template <class T>
class Reader {
 public:
  explicit Reader(const Operand& operand)
      : data(static_cast<const T*>(operand.data)),
        outer_stride(operand.outer_stride),
        inner_stride(operand.inner_stride) {}

  // words[i]: the pairs of outer entry i; `outer` and `inner` entries exist, the others are zeros. Where the inner
  // entries are contiguous.
  TORCHDION_AVX512 void by_outer(int64_t first_outer, int64_t first_inner, int64_t outer, int64_t inner,
                                 __m512i (&words)[16]) const {
    for (int64_t i = 0; i < kBlock; ++i) {
      if (i < outer) fetch_ahead(at(first_outer + i, first_inner + kAhead));
      words[i] = i < outer ? pairs_in_a_row(at(first_outer + i, first_inner), inner) : _mm512_setzero_si512();
    }
  }

  // words[i]: pair i of the outer entries. Where these are contiguous.
  TORCHDION_AVX512 void by_pairs(int64_t first_outer, int64_t first_inner, int64_t outer, int64_t inner,
                                 __m512i (&words)[16]) const {
    const __mmask16 mask = avx512::first_of_16(outer);
    for (int64_t i = 0; i < kBlock; ++i) {
      fetch_ahead(at(first_outer, first_inner + kAhead + 2 * i));
      fetch_ahead(at(first_outer, first_inner + kAhead + 2 * i + 1));
      const __m256i even = 2 * i < inner ? sixteen(at(first_outer, first_inner + 2 * i), mask) : _mm256_setzero_si256();
      const __m256i odd =
          2 * i + 1 < inner ? sixteen(at(first_outer, first_inner + 2 * i + 1), mask) : _mm256_setzero_si256();
      words[i] = _mm512_or_si512(_mm512_cvtepu16_epi32(even), _mm512_slli_epi32(_mm512_cvtepu16_epi32(odd), 16));
    }
  }

 private:
  // Inner entries that are asked for before they are read, from memory that a processor does not foresee: so many rows
  // are read at once.
  static constexpr int64_t kAhead = 2 * kBlock;

  static void fetch_ahead(const T* from) {
    __builtin_prefetch(from);
    if (sizeof(T) == 4) __builtin_prefetch(from + kBlock);
  }

  const T* at(int64_t outer, int64_t inner) const { return data + outer * outer_stride + inner * inner_stride; }

  TORCHDION_AVX512 static __m512i pairs_in_a_row(const float* from, int64_t count) {
    const __m512 low = avx512::load(from, avx512::first_of_16(count));
    const __m512 high = count > 16 ? avx512::load(from + 16, avx512::first_of_16(count - 16)) : _mm512_setzero_ps();
    return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(avx512::within_bfloat16(high), avx512::within_bfloat16(low)));
  }

  TORCHDION_AVX512 static __m512i pairs_in_a_row(const c10::BFloat16* from, int64_t count) {
    return _mm512_maskz_loadu_epi16(avx512::first_of_32(count), from);
  }

  TORCHDION_AVX512 static __m256i sixteen(const float* from, __mmask16 mask) {
    return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(avx512::within_bfloat16(avx512::load(from, mask))));
  }

  TORCHDION_AVX512 static __m256i sixteen(const c10::BFloat16* from, __mmask16 mask) {
    return _mm256_maskz_loadu_epi16(mask, from);
  }

  const T* data;
  int64_t outer_stride, inner_stride;
};

// The same of BF16 entries that lie side by side in the other dimension: pairs are made of two rows of memory, 32 of
// them at a time.
TORCHDION_AVX512 void pack_pairs_of_rows(const Operand& operand, int64_t first, int64_t first_inner, int64_t width,
                                         int64_t depth, uint32_t* target) {
  constexpr int64_t kAhead = 32;  // rows that are asked for before they are read
  constexpr int64_t kColumns = 32;
  __m512i low, high;  // of words 0 to 15 and 16 to 31: which entries of the one row and of the other
  {
    alignas(64) uint16_t places[2][kColumns];
    for (int i = 0; i < kColumns; ++i) {
      places[0][i] = static_cast<uint16_t>(i / 2 + i % 2 * kColumns);
      places[1][i] = static_cast<uint16_t>(places[0][i] + kColumns / 2);
    }
    low = _mm512_load_si512(places[0]);
    high = _mm512_load_si512(places[1]);
  }
  const auto* data = static_cast<const c10::BFloat16*>(operand.data) + first;
  const auto row_at = [&](int64_t inner) { return data + inner * operand.inner_stride; };
  for (int64_t inner = first_inner; inner < first_inner + depth; inner += 2, target += width) {
    for (int64_t outer = 0; outer < width; outer += kColumns) {
      __builtin_prefetch(row_at(inner + kAhead) + outer);
      __builtin_prefetch(row_at(inner + kAhead + 1) + outer);
      const __mmask32 mask = avx512::first_of_32(operand.outer - first - outer);
      const __mmask32 even_mask = inner < operand.inner ? mask : 0, odd_mask = inner + 1 < operand.inner ? mask : 0;
      const __m512i even = _mm512_maskz_loadu_epi16(even_mask, row_at(inner) + outer),
                    odd = _mm512_maskz_loadu_epi16(odd_mask, row_at(inner + 1) + outer);
      _mm512_storeu_si512(target + outer, _mm512_permutex2var_epi16(even, low, odd));
      if (outer + kColumns / 2 < width) {
        _mm512_storeu_si512(target + outer + kColumns / 2, _mm512_permutex2var_epi16(even, high, odd));
      }
    }
  }
}

// Packs one chunk: inner entries from `first_inner` on, which become `depth` of them. The strides of the target are in
// words.
template <class T>
TORCHDION_AVX512 void pack_chunk(const Operand& operand, int64_t first, int64_t first_inner, int64_t width,
                                 int64_t depth, PanelOrder order, uint32_t* target) {
  const Reader<T> reader(operand);
  const bool reads_by_outer = operand.inner_stride == 1, writes_by_outer = order == PanelOrder::rows;
  const int64_t stride = writes_by_outer ? depth / 2 : width;
  __m512i words[16];
  for (int64_t inner = 0; inner < depth; inner += 2 * kBlock) {
    for (int64_t outer = 0; outer < width; outer += kBlock) {
      const int64_t outer_left = operand.outer - first - outer, inner_left = operand.inner - first_inner - inner;
      if (reads_by_outer) {
        reader.by_outer(first + outer, first_inner + inner, outer_left, inner_left, words);
      } else {
        reader.by_pairs(first + outer, first_inner + inner, outer_left, inner_left, words);
      }
      if (reads_by_outer != writes_by_outer) avx512::transpose(words);
      uint32_t* block = target + (writes_by_outer ? outer * stride + inner / 2 : inner / 2 * stride + outer);
      for (int64_t i = 0; i < kBlock; ++i) _mm512_storeu_si512(block + i * stride, words[i]);
    }
  }
}

}  // namespace

void pack_panel(const Operand& operand, int64_t first, PanelOrder order, c10::BFloat16* panel) {
  const int64_t width = padded_width(std::min(kPanelWidth, operand.outer - first));
  for (int64_t inner = 0; inner < operand.inner; inner += kPanelDepth) {
    const int64_t depth = padded_depth(std::min(kPanelDepth, operand.inner - inner));
    auto* chunk = reinterpret_cast<uint32_t*>(panel + inner * width);
    if (operand.is_bfloat16 && operand.inner_stride != 1 && order == PanelOrder::pairs) {
      pack_pairs_of_rows(operand, first, inner, width, depth, chunk);
    } else if (operand.is_bfloat16) {
      pack_chunk<c10::BFloat16>(operand, first, inner, width, depth, order, chunk);
    } else {
      pack_chunk<float>(operand, first, inner, width, depth, order, chunk);
    }
  }
}

#else

void pack_panel(const Operand&, int64_t, PanelOrder, c10::BFloat16*) {
  TORCH_INTERNAL_ASSERT(false, "no processor of this kind has BF16 products");
}

#endif

}  // namespace torchdion::linalg::cpu
