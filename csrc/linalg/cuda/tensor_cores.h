// Products by tensor cores in block programs: 16×16 pieces of matrices, spread over the registers of a warp. Operands
// are BF16 and lie in shared memory, sums are FP32. On the host a piece is 256 numbers.
#pragma once

#include "linalg/cuda/block.h"
#include "linalg/cuda/storage.h"

#ifdef __CUDACC__
#include <mma.h>
#endif

namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE {

inline constexpr int kPiece = 16;

#ifdef __CUDACC__

// Before sm_80 tensor cores have no BF16: code for these devices is never run (kernels::adds_products()).
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800

namespace pieces {

using namespace nvcuda::wmma;

template <class Use, class Order>
using Operand = fragment<Use, kPiece, kPiece, kPiece, __nv_bfloat16, Order>;

// The loads below are written out: nvcc turns load_matrix_sync() of BF16 into generic loads of two entries each.
template <class Piece>
TORCHDION_DEVICE unsigned* words_of(Piece& piece) {
  static_assert(sizeof piece.x == 4 * sizeof(unsigned), "four words of two entries");
  return reinterpret_cast<unsigned*>(piece.x);
}
TORCHDION_DEVICE unsigned shared_address(const BFloat16* rows) {
  return static_cast<unsigned>(__cvta_generic_to_shared(rows));
}

}  // namespace pieces

// Rows of A: `stride` entries from one to the next, a multiple of 8, from a multiple of 32 bytes on.
struct LeftPiece {
  pieces::Operand<pieces::matrix_a, pieces::row_major> own;

  TORCHDION_DEVICE void load(const BFloat16* rows, int stride) {
    unsigned* words = pieces::words_of(own);
    asm volatile("wmma.load.a.sync.aligned.row.m16n16k16.shared.bf16 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(pieces::shared_address(rows)), "r"(stride)
                 : "memory");
  }
};

// The same of Bᵀ.
struct RightPiece {
  pieces::Operand<pieces::matrix_b, pieces::col_major> own;

  TORCHDION_DEVICE void load(const BFloat16* rows, int stride) {
    unsigned* words = pieces::words_of(own);
    asm volatile("wmma.load.b.sync.aligned.col.m16n16k16.shared.bf16 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(pieces::shared_address(rows)), "r"(stride)
                 : "memory");
  }
};

struct SumPiece {
  pieces::fragment<pieces::accumulator, kPiece, kPiece, kPiece, float> own;

  TORCHDION_DEVICE void clear() { pieces::fill_fragment(own, 0.0f); }
  TORCHDION_DEVICE void add_product(const LeftPiece& A, const RightPiece& B_transposed) {
    pieces::mma_sync(own, A.own, B_transposed.own, own);
  }
  TORCHDION_DEVICE void store(float* rows, int stride) const {
    pieces::store_matrix_sync(rows, own, static_cast<unsigned>(stride), pieces::mem_row_major);
  }
};

#else

struct LeftPiece {
  TORCHDION_DEVICE void load(const BFloat16*, int) {}
};
using RightPiece = LeftPiece;
struct SumPiece {
  TORCHDION_DEVICE void clear() {}
  TORCHDION_DEVICE void add_product(const LeftPiece&, const RightPiece&) {}
  TORCHDION_DEVICE void store(float*, int) const {}
};

#endif

#else

// sum + Σ a_l b_l of `kPiece` products, as the tensor cores that tests have chosen add them.
extern float add_products(float sum, const float* a, const float* b);

struct LeftPiece {
  float entries[kPiece][kPiece];

  void load(const BFloat16* rows, int stride) {
    for (int i = 0; i < kPiece; ++i) {
      for (int l = 0; l < kPiece; ++l) entries[i][l] = linalg::TORCHDION_CUDA_NAMESPACE::load(rows[i * stride + l]);
    }
  }
};
using RightPiece = LeftPiece;

struct SumPiece {
  float sums[kPiece][kPiece];

  void clear() { *this = SumPiece{}; }
  void add_product(const LeftPiece& A, const RightPiece& B_transposed) {
    for (int i = 0; i < kPiece; ++i) {
      for (int j = 0; j < kPiece; ++j) sums[i][j] = add_products(sums[i][j], A.entries[i], B_transposed.entries[j]);
    }
  }
  void store(float* rows, int stride) const {
    for (int i = 0; i < kPiece; ++i) {
      for (int j = 0; j < kPiece; ++j) rows[i * stride + j] = sums[i][j];
    }
  }
};

#endif

}  // namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE
