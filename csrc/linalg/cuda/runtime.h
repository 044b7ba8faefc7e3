// What the operations need of CUDA beside kernels of their own: a stream, and products by cuBLAS. Matrices are
// described as cuBLAS sees them, column by column. Tests put a host's version in the place of runtime.cpp.
#pragma once

#include "linalg/cuda/launch.h"
#include "linalg/cuda/storage.h"
#include "linalg/recorder.h"

namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE {

// torch's current stream on a device.
Stream current_stream(int device);

// Whether a graph records what is started on that stream.
bool is_capturing(int device);

// What products are computed in: the type that operands are rounded to; sums are FP64 or FP32.
enum class Arithmetic { fp64, fp32, tf32, bf16 };

// One matrix of each of a batch of products: at data + i stride, or, where there is a list, where its entries point.
struct Operand {
  void* data = nullptr;
  int64_t stride = 0;  // in elements
  void* const* list = nullptr;
  int64_t leading = 0;  // elements from one column to the next
  bool transposed = false;
  Storage storage = Storage::float32;
};

// A number, or one in device memory, FP64 for Arithmetic::fp64 and else FP32.
struct Scalar {
  double value = 0;
  const void* device = nullptr;
};

// C ← α op(A) op(B) + β C, for `count` matrices C of size m×n. A and B are stored alike, and C as they are or in FP32.
//
// With an addend, which is stored as all the others and no list as they are none, C ← α op(A) op(B) + β addend, where
// both factors are numbers. It needs room in device memory: so many bytes, at a multiple of 16.
//
// Symmetric: C and the addend are, and B is A's transpose, or both are symmetric too. All are BF16 and no lists, and
// begin with their columns at multiples of 16 bytes; both factors are numbers. With an addend op(A)'s rows or op(B)'s
// columns are contiguous. It needs no room.
inline constexpr int64_t kProductRoom = int64_t{32} << 20;
struct Product {
  int64_t m = 0, n = 0, k = 0, count = 0;
  Operand A, B, C;
  Scalar alpha, beta;  // both numbers, or both in device memory
  Arithmetic arithmetic = Arithmetic::fp32;
  Operand addend = {};  // null data: none
  void* room = nullptr;
  bool symmetric = false;
};

void multiply(const Product& product, int device);

// True where the device has a kernel for symmetric products, which computes the tiles on and below the diagonal alone.
bool multiplies_symmetric(int device);

// Where multiplies_symmetric(), on the device's current stream.
void multiply_symmetric(const Product& product, int device);

// Bytes of operands that are one matrix, or the same as each other, count once.
Work work_of(const Product& product);
void record_product(const Product& product);

}  // namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE
