// Blocks of matrices in the type that a kernel computes in: read where they lie when they have it, else through a
// scratch copy.
#pragma once

#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>

#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include "linalg/cpu/blas.h"
#include "linalg/least_momentum.h"
#include "linalg/matrices.h"

#define TORCHDION_DISPATCH_FLOATING(dtype, name, ...) \
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, dtype, name, __VA_ARGS__)

namespace torchdion::linalg::cpu {

// What two types are computed in together.
template <class A, class B>
using Wider = decltype(at::opmath_type<A>() + at::opmath_type<B>());

inline bool is_infinite(at::Half value) { return (value.x & 0x7fff) == 0x7c00; }
inline bool is_infinite(float value) { return std::isinf(value); }

// Rounds to the type that a matrix is stored in. A finite number beyond its range becomes its largest: FP16 holds no
// sum of a few gradients of 5000, and one infinite momentum would make all weights NaN. NaN and infinity stay what they
// are. What was computed in FP32 goes to BF16 unchecked, whose range is the same up to rounding.
template <class Stored, class T>
Stored rounded(T value) {
  Stored nearest = static_cast<Stored>(value);
  if constexpr (std::is_same_v<Stored, at::Half> || (std::is_same_v<T, double> && !std::is_same_v<Stored, double>)) {
    if (is_infinite(nearest) && std::isfinite(value)) [[unlikely]] {
      nearest = value > 0 ? std::numeric_limits<Stored>::max() : std::numeric_limits<Stored>::lowest();
    }
  }
  return nearest;
}

// linalg/least_momentum.h of momenta stored as S, in the type that computes them.
template <class S>
constexpr at::opmath_type<S> least_momentum() {
  if constexpr (std::is_same_v<S, double>) return kLeastMomentumFP64;
  if constexpr (std::is_same_v<S, at::Half>) return static_cast<float>(kLeastMomentumFP16);
  return static_cast<at::opmath_type<S>>(kLeastMomentumFP32);
}

template <class T>
void copy_out(std::vector<T>& scratch, const Matrices& source, int64_t index, int64_t row, int64_t rows) {
  TORCHDION_DISPATCH_FLOATING(source.dtype, "torchdion::copy_out", [&] {
    const scalar_t* first = source.matrix<const scalar_t>(index) + row * source.row_stride;
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < source.cols; ++j) {
        scratch[i * source.cols + j] = static_cast<T>(first[i * source.row_stride + j * source.col_stride]);
      }
    }
  });
}

// `rows` rows of matrix `index` from row `row` on, as T. The caller keeps `scratch` from call to call.
template <class T>
Block<const T> read_rows(const Matrices& source, int64_t index, int64_t row, int64_t rows, std::vector<T>& scratch) {
  if (source.dtype == c10::CppTypeToScalarType<T>::value) {
    return {source.matrix<const T>(index) + row * source.row_stride, source.row_stride, source.col_stride};
  }
  scratch.resize(rows * source.cols);
  copy_out(scratch, source, index, row, rows);
  return {scratch.data(), source.cols, 1};
}

// Rounds scratch rows back to the type they are stored in.
template <class T>
void write_rows(const Matrices& target, int64_t index, int64_t row, int64_t rows, const std::vector<T>& scratch) {
  TORCHDION_DISPATCH_FLOATING(target.dtype, "torchdion::write_rows", [&] {
    scalar_t* first = target.matrix<scalar_t>(index) + row * target.row_stride;
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < target.cols; ++j) {
        first[i * target.row_stride + j * target.col_stride] = rounded<scalar_t>(scratch[i * target.cols + j]);
      }
    }
  });
}

}  // namespace torchdion::linalg::cpu
