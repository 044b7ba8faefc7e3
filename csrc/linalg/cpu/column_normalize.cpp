#include "linalg/cpu/operations.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <cmath>

#include "linalg/cpu/convert.h"
#include "linalg/cpu/parallel_rows.h"

namespace torchdion::linalg::cpu {

at::Tensor Operations::column_square_sums(const Matrices& R) {
  at::Tensor sums = at::zeros({R.count(), R.cols}, at::kDouble);
  double* out = sums.mutable_data_ptr<double>();
  TORCHDION_DISPATCH_FLOATING(R.dtype, "torchdion::column_square_sums", [&] {
    const int64_t grain = kElementsPerThread / std::max<int64_t>(1, R.rows * R.cols) + 1;
    at::parallel_for(0, R.count(), grain, [&](int64_t begin, int64_t end) {
      for (int64_t index = begin; index < end; ++index) {
        double* sum = out + index * R.cols;
        for (int64_t i = 0; i < R.rows; ++i) {
          const scalar_t* row = R.matrix<const scalar_t>(index) + i * R.row_stride;
          for (int64_t j = 0; j < R.cols; ++j) {
            const double entry = static_cast<double>(row[j * R.col_stride]);
            sum[j] += entry * entry;
          }
        }
      }
    });
  });
  return sums;
}

void Operations::column_normalize_(const Matrices& Q, const Matrices& R, const at::Tensor& square_sums,
                                   const NormalizedCopies& copies) {
  const at::Tensor sums = square_sums.defined() ? square_sums : column_square_sums(R);
  const at::Tensor inverse_norms = sums.rsqrt();  // infinite where a column keeps what it has
  const double* inverse = inverse_norms.const_data_ptr<double>();
  TORCHDION_DISPATCH_FLOATING(Q.dtype, "torchdion::column_normalize_", [&] {
    using q_t = scalar_t;
    TORCHDION_DISPATCH_FLOATING(R.dtype, "torchdion::column_normalize_", [&] {
      const int64_t grain = kElementsPerThread / std::max<int64_t>(1, R.cols) + 1;
      cpu::parallel_rows(R.count(), R.rows, grain, [&](int64_t index, int64_t first, int64_t count) {
        const double* scale = inverse + index * R.cols;
        for (int64_t i = first; i < first + count; ++i) {
          q_t* q = Q.matrix<q_t>(index) + i * Q.row_stride;
          const scalar_t* r = R.matrix<const scalar_t>(index) + i * R.row_stride;
          for (int64_t j = 0; j < R.cols; ++j) {
            if (scale[j] == std::numeric_limits<double>::infinity()) continue;
            q[j * Q.col_stride] = static_cast<q_t>(static_cast<double>(r[j * R.col_stride]) * scale[j]);
          }
        }
      });
    });
  });
  if (copies.Q.defined()) copy_(Matrices(copies.Q), Q, 1, nullptr);
  if (copies.R.defined()) copy_(Matrices(copies.R), R, 1, nullptr);
}

}  // namespace torchdion::linalg::cpu
