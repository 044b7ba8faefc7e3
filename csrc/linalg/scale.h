// Powers of two that bring FP64 matrices within what FP64 holds the squares of. Matrices of other dtypes need none:
// their squares are summed in FP64. A power of two changes no bit of a mantissa.
#pragma once

#include <ATen/core/Tensor.h>

namespace torchdion::linalg {

// Where the length of something lies within [2⁻³⁰⁰, 2⁴⁵⁰], is 0 or NaN, it needs no scale.
inline constexpr double kShortest = 0x1p-300, kLongest = 0x1p+450, kLengthen = 0x1p+536, kShorten = 0x1p-510;

// The largest magnitude along the dimensions, which stay, of size 1.
at::Tensor largest_entries(const at::Tensor& matrices, at::IntArrayRef dims);

// For each length, FP64, kLengthen, kShorten or 1.
at::Tensor scale_of_lengths(const at::Tensor& lengths);

// Where a scale is not 1, the Gram matrix H ([count, r, r] FP64), whose entries may have left what FP64 holds, becomes
// that of orthogonal columns of length 1 / scale: its factor gives the columns of P, from which H is, the scale and
// nothing else. The scale ([count]) follows from H alone, so that it is the same on all ranks which share H.
at::Tensor rescale_gram_(const at::Tensor& H);

// Whether any of the scales is not 1, where the host knows without waiting for a device, which is taken to have some.
bool may_scale(const at::Tensor& scale);

// R ([count, n, r]) times the scale of each column's length, or the given one of each matrix ([count]). Returns the
// factors, [count, 1, r] or [count, 1, 1].
at::Tensor scale_columns_(const at::Tensor& R, const at::Tensor& scale = {});

// P ([count, m, r]), orthonormal columns or zero ones, tells by its length how R is scaled ([count]): what ranks have
// to agree on travels with it at no cost. mark_() makes it longer or shorter, and read_mark_() undoes that.
void mark_(const at::Tensor& P, const at::Tensor& scale);
at::Tensor read_mark_(const at::Tensor& P);

}  // namespace torchdion::linalg
