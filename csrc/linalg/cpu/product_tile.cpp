#include "linalg/cpu/product_tile.h"

#include <c10/util/Exception.h>

#include "linalg/cpu/avx512.h"
#include "linalg/cpu/convert.h"

namespace torchdion::linalg::cpu {

#if defined(__x86_64__)

namespace {

constexpr int64_t kBlock = 16;  // rows and columns that are transposed at a time

TORCHDION_AVX512 void load_block(const float* from, __m512i (&rows)[16]) {
  for (int64_t i = 0; i < kBlock; ++i) rows[i] = _mm512_load_si512(from + i * kTile);
}

TORCHDION_AVX512 void store_block(float* to, const __m512i (&rows)[16]) {
  for (int64_t i = 0; i < kBlock; ++i) _mm512_store_si512(to + i * kTile, rows[i]);
}

TORCHDION_AVX512 void scale_tile(ProductTile& tile, const TilePlace& place, float alpha) {
  if (alpha == 1) return;
  const __m512 factor = _mm512_set1_ps(alpha);
  for (int64_t i = 0; i < place.rows * kTile; i += kBlock) {
    _mm512_store_ps(tile.sums + i, _mm512_mul_ps(factor, _mm512_load_ps(tile.sums + i)));
  }
}

template <class T>
TORCHDION_AVX512 void combine_rows(ProductTile& tile, const T* D, int64_t stride, const TilePlace& place, float alpha,
                                   float beta) {
  const __m512 of_tile = _mm512_set1_ps(alpha), of_D = _mm512_set1_ps(beta);
  for (int64_t i = 0; i < place.rows; ++i) {
    for (int64_t j = 0; j < place.cols; j += kBlock) {
      float* sums = tile.sums + i * kTile + j;
      const __m512 other = _mm512_mul_ps(of_D, avx512::load(D + i * stride + j, avx512::first_of_16(place.cols - j)));
      _mm512_store_ps(sums, _mm512_fmadd_ps(of_tile, _mm512_load_ps(sums), other));
    }
  }
}

// The tile of a D whose rows are not contiguous.
template <class T>
void read_tile(const Matrices& D, const TilePlace& place, ProductTile& read) {
  const T* first = D.matrix<const T>(place.index) + place.row * D.row_stride + place.col * D.col_stride;
  for (int64_t j = 0; j < place.cols; ++j) {
    for (int64_t i = 0; i < place.rows; ++i) {
      read.sums[i * kTile + j] = static_cast<float>(first[i * D.row_stride + j * D.col_stride]);
    }
  }
}

template <class T>
TORCHDION_AVX512 void store_rows(const ProductTile& tile, T* C, int64_t stride, const TilePlace& place) {
  for (int64_t i = 0; i < place.rows; ++i) {
    for (int64_t j = 0; j < place.cols; j += kBlock) {
      avx512::store(C + i * stride + j, avx512::first_of_16(place.cols - j), _mm512_load_ps(tile.sums + i * kTile + j));
    }
  }
}

TORCHDION_AVX512 void store_rows(const ProductTile& tile, c10::BFloat16* C, int64_t stride, const TilePlace& place) {
  for (int64_t i = 0; i < place.rows; ++i) {
    for (int64_t j = 0; j < place.cols; j += 2 * kBlock) {
      const float* sums = tile.sums + i * kTile + j;
      avx512::store_32(C + i * stride + j, avx512::first_of_32(place.cols - j), _mm512_load_ps(sums),
                       _mm512_load_ps(sums + kBlock));
    }
  }
}

TORCHDION_AVX512 void transpose_tile(const ProductTile& tile, ProductTile& turned, const TilePlace& place) {
  __m512i block[16];
  for (int64_t i = 0; i < place.rows; i += kBlock) {
    for (int64_t j = 0; j < place.cols; j += kBlock) {
      load_block(tile.sums + i * kTile + j, block);
      avx512::transpose(block);
      store_block(turned.sums + j * kTile + i, block);
    }
  }
}

TORCHDION_AVX512 void mirror_blocks(ProductTile& tile, int64_t rows) {
  __m512i block[16];
  for (int64_t i = 0; i < rows; i += kBlock) {
    for (int64_t j = 0; j <= i; j += kBlock) {
      load_block(tile.sums + i * kTile + j, block);
      avx512::transpose(block);
      float* mirrored = tile.sums + j * kTile + i;
      for (int64_t k = 0; k < kBlock; ++k) {
        // on the diagonal, what lies right of it in row k
        const auto mask = static_cast<__mmask16>(i == j ? 0xffffU << (k + 1) : 0xffffU);
        _mm512_mask_store_epi32(mirrored + k * kTile, mask, block[k]);
      }
    }
  }
}

}  // namespace

void combine(ProductTile& tile, const Matrices& D, const TilePlace& place, float alpha, float beta) {
  if (beta == 0) return scale_tile(tile, place, alpha);
  TORCHDION_DISPATCH_FLOATING(D.dtype, "torchdion::addmm_", [&] {
    if constexpr (!std::is_same_v<scalar_t, double>) {
      if (D.row_major()) {
        const scalar_t* first = D.matrix<const scalar_t>(place.index) + place.row * D.row_stride + place.col;
        return combine_rows(tile, first, D.row_stride, place, alpha, beta);
      }
      ProductTile read;
      read_tile<scalar_t>(D, place, read);
      combine_rows(tile, read.sums, kTile, place, alpha, beta);
    }
  });
}

void mirror_below(ProductTile& tile, int64_t rows) { mirror_blocks(tile, rows); }

void store(const ProductTile& tile, const Matrices& C, const TilePlace& place) {
  TORCHDION_DISPATCH_FLOATING(C.dtype, "torchdion::addmm_", [&] {
    scalar_t* first = C.matrix<scalar_t>(place.index) + place.row * C.row_stride + place.col;
    store_rows(tile, first, C.row_stride, place);
  });
}

void store_transposed(const ProductTile& tile, ProductTile& turned, const Matrices& C, const TilePlace& place) {
  transpose_tile(tile, turned, place);
  store(turned, C, place.t());
}

#else

namespace {

[[noreturn]] void refuse() { TORCH_INTERNAL_ASSERT(false, "no processor of this kind has BF16 products"); }

}  // namespace

void combine(ProductTile&, const Matrices&, const TilePlace&, float, float) { refuse(); }
void mirror_below(ProductTile&, int64_t) { refuse(); }
void store(const ProductTile&, const Matrices&, const TilePlace&) { refuse(); }
void store_transposed(const ProductTile&, ProductTile&, const Matrices&, const TilePlace&) { refuse(); }

#endif

}  // namespace torchdion::linalg::cpu
