// Products by tensor cores in block programs: pieces of matrices, spread over the registers of a warp. Operands are
// BF16 or FP32 and lie in shared memory, sums are FP32. Of FP32 operands tensor cores read what TF32 has, and no other
// bit: nothing rounds them. On the host a piece is its numbers.
#pragma once

#include "linalg/cuda/block.h"
#include "linalg/cuda/storage.h"

#ifdef __CUDACC__
#include <mma.h>

#include <type_traits>
#endif

namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE {

inline constexpr int kPiece = 16;  // rows and columns of sums

// So many products are added at once: pieces of A and Bᵀ have 16 rows of 32 bytes.
template <class S>
inline constexpr int kPieceDepth = 32 / sizeof(S);

#ifdef __CUDACC__

// Before sm_80 tensor cores have neither BF16 nor TF32: code for these devices is never run (kernels::adds_products()).
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800

namespace pieces = nvcuda::wmma;

// The loads below are written out: nvcc turns load_matrix_sync() of BF16 into generic loads of two entries each.
#define TORCHDION_LOAD_PIECE(PIECE)                                             \
  asm volatile("wmma.load." PIECE " {%0, %1, %2, %3}, [%4], %5;"                \
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3]) \
               : "r"(address), "r"(stride)                                      \
               : "memory")

// Rows of A, or of Bᵀ: `stride` entries from one to the next, a multiple of 16 bytes, from a multiple of 32 bytes on.
template <class S, class Use, class Order>
struct OperandPiece {
  using Number = std::conditional_t<sizeof(S) == 2, __nv_bfloat16, pieces::precision::tf32>;
  pieces::fragment<Use, kPiece, kPiece, kPieceDepth<S>, Number, Order> own;
  static_assert(sizeof own.x == 4 * sizeof(unsigned), "four words of one entry or two");

  TORCHDION_DEVICE void load(const S* rows, int stride) {
    constexpr bool is_left = std::is_same_v<Use, pieces::matrix_a>, is_bfloat16 = sizeof(S) == 2;
    unsigned* words = reinterpret_cast<unsigned*>(own.x);
    const auto address = static_cast<unsigned>(__cvta_generic_to_shared(rows));
    if constexpr (is_left && is_bfloat16) {
      TORCHDION_LOAD_PIECE("a.sync.aligned.row.m16n16k16.shared.bf16");
    } else if constexpr (is_left) {
      TORCHDION_LOAD_PIECE("a.sync.aligned.row.m16n16k8.shared.tf32");
    } else if constexpr (is_bfloat16) {
      TORCHDION_LOAD_PIECE("b.sync.aligned.col.m16n16k16.shared.bf16");
    } else {
      TORCHDION_LOAD_PIECE("b.sync.aligned.col.m16n16k8.shared.tf32");
    }
  }
};
template <class S>
using LeftPiece = OperandPiece<S, pieces::matrix_a, pieces::row_major>;
template <class S>
using RightPiece = OperandPiece<S, pieces::matrix_b, pieces::col_major>;

#undef TORCHDION_LOAD_PIECE

template <class S>
struct SumPiece {
  pieces::fragment<pieces::accumulator, kPiece, kPiece, kPieceDepth<S>, float> own;

  TORCHDION_DEVICE void clear() { pieces::fill_fragment(own, 0.0f); }
  TORCHDION_DEVICE void add_product(const LeftPiece<S>& A, const RightPiece<S>& B_transposed) {
    pieces::mma_sync(own, A.own, B_transposed.own, own);
  }
  TORCHDION_DEVICE void store(float* rows, int stride) const {
    pieces::store_matrix_sync(rows, own, static_cast<unsigned>(stride), pieces::mem_row_major);
  }
};

#else

template <class S>
struct LeftPiece {
  TORCHDION_DEVICE void load(const S*, int) {}
};
template <class S>
using RightPiece = LeftPiece<S>;
template <class S>
struct SumPiece {
  TORCHDION_DEVICE void clear() {}
  TORCHDION_DEVICE void add_product(const LeftPiece<S>&, const RightPiece<S>&) {}
  TORCHDION_DEVICE void store(float*, int) const {}
};

#endif

#else

// sum + Σ a_l b_l of `count` products, as the tensor cores that tests have chosen add them.
extern float add_products(float sum, int count, const float* a, const float* b);

inline float read_by_tensor_cores(BFloat16 value) { return load(value); }
inline float read_by_tensor_cores(float value) { return truncate_mantissa<10>(value); }

template <class S>
struct LeftPiece {
  float entries[kPiece][kPieceDepth<S>];

  void load(const S* rows, int stride) {
    for (int i = 0; i < kPiece; ++i) {
      for (int l = 0; l < kPieceDepth<S>; ++l) entries[i][l] = read_by_tensor_cores(rows[i * stride + l]);
    }
  }
};
template <class S>
using RightPiece = LeftPiece<S>;

template <class S>
struct SumPiece {
  float sums[kPiece][kPiece];

  void clear() { *this = SumPiece{}; }
  void add_product(const LeftPiece<S>& A, const RightPiece<S>& B_transposed) {
    for (int i = 0; i < kPiece; ++i) {
      for (int j = 0; j < kPiece; ++j) {
        sums[i][j] = add_products(sums[i][j], kPieceDepth<S>, A.entries[i], B_transposed.entries[j]);
      }
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
