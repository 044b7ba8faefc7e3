#include "linalg/residual.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "linalg/cpu/convert.h"
#include "linalg/cpu/operations.h"
#include "linalg/cpu/parallel_rows.h"
#include "linalg/rules/decay.h"
#include "linalg/rules/residual.h"

namespace torchdion::linalg::cpu {

namespace {

// The scale of one matrix; `lengths` are reordered.
template <class T>
T scale_of(std::vector<double>& lengths, double least) {
  const auto is_nan = [](double length) { return std::isnan(length); };
  if (std::any_of(lengths.begin(), lengths.end(), is_nan)) return std::numeric_limits<T>::quiet_NaN();
  lengths.erase(std::remove(lengths.begin(), lengths.end(), 0), lengths.end());
  if (lengths.empty()) return 0;
  const int64_t quarter = quarter_of(static_cast<int64_t>(lengths.size()));
  std::partial_sort(lengths.begin(), lengths.begin() + quarter, lengths.end());
  const double sum = std::accumulate(lengths.begin(), lengths.begin() + quarter, 0.0);
  const double longest = *std::max_element(lengths.begin(), lengths.end());
  return inverse_sigma<T>(sum / static_cast<double>(quarter), longest, least);
}

// One row of U and L. `length` times one of `lengths` is what an entry may be by the rounding of factors.
template <class TU, class TL>
void take_signs_of_row(TU* u, TL* l, int64_t count, TU feedback, TU of_entries, TU length, const TU* lengths) {
  const auto sign = [&](TU whole, TU part, TU of_factors) {
    return sign_above(whole - part, of_entries * (std::abs(whole) + std::abs(part)) + length * of_factors);
  };
  for (int64_t j = 0; j < count; ++j) {
    const TU part = u[j], whole = static_cast<TU>(l[j]);
    u[j] = sign(whole, part, lengths[j]);
    if (feedback != 0) l[j] = rounded<TL>(whole - feedback * part);
  }
}

// `factor` times each length; zeros where they are not given.
template <class T>
std::vector<T> lengths_of(const at::Tensor& squares, int64_t numel, double factor) {
  std::vector<T> lengths(numel);
  if (!squares.defined()) return lengths;
  const double* of = squares.const_data_ptr<double>();
  for (int64_t i = 0; i < numel; ++i) lengths[i] = static_cast<T>(factor * std::sqrt(of[i]));
  return lengths;
}

}  // namespace

at::Tensor Operations::residual_scales(const at::Tensor& squares, double least, at::TensorOptions options) {
  const int64_t count = squares.size(0), r = squares.size(1);
  const at::Tensor of_columns = squares.sqrt(), scales = at::empty({count}, options);
  std::vector<double> lengths;
  AT_DISPATCH_FLOATING_TYPES(scales.scalar_type(), "torchdion::residual_scales", [&] {
    for (int64_t i = 0; i < count; ++i) {
      const double* first = of_columns.const_data_ptr<double>() + i * r;
      lengths.assign(first, first + r);
      scales.mutable_data_ptr<scalar_t>()[i] = scale_of<scalar_t>(lengths, least);
    }
  });
  return scales;
}

void Operations::take_signs_(const Matrices& U, const Matrices& L, double feedback, const SignFloor& floor) {
  if (!U.row_major()) return take_signs_(U.t(), L.t(), feedback, floor.t());
  AT_DISPATCH_FLOATING_TYPES(U.dtype, "torchdion::take_signs_", [&] {
    using u_t = scalar_t;
    const std::vector<u_t> left = lengths_of<u_t>(floor.left, U.count() * U.rows, floor.of_factors),
                           right = lengths_of<u_t>(floor.right, U.count() * U.cols, 1);
    TORCHDION_DISPATCH_FLOATING(L.dtype, "torchdion::take_signs_", [&] {
      parallel_rows(U, [&](int64_t index, int64_t first, int64_t count) {
        for (int64_t i = first; i < first + count; ++i) {
          take_signs_of_row(U.matrix<u_t>(index) + i * U.row_stride, L.matrix<scalar_t>(index) + i * L.row_stride,
                            U.cols, static_cast<u_t>(feedback), static_cast<u_t>(floor.of_entries),
                            left[index * U.rows + i], right.data() + index * U.cols);
        }
      });
    });
  });
}

}  // namespace torchdion::linalg::cpu
