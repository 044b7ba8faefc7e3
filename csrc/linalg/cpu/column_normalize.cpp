#include "linalg/cpu/operations.h"

#include <ATen/Parallel.h>
#include <ATen/ops/zeros.h>

#include <limits>

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

// U ← Q − s R of the new Q as it is stored.
void Operations::column_normalize_(const Matrices& Q, const Matrices& R, const at::Tensor& square_sums,
                                   const NormalizedOutputs& outputs) {
  const at::Tensor sums = square_sums.defined() ? square_sums : column_square_sums(R);
  const at::Tensor inverse_norms = sums.rsqrt();  // infinite where a column keeps what it has
  const double* inverse = inverse_norms.const_data_ptr<double>();
  const at::Tensor scales =
      outputs.scales.defined() ? outputs.scales.to(at::kDouble) : at::zeros({Q.count()}, at::kDouble);
  const Matrices U = outputs.update.defined() ? Matrices(outputs.update) : Matrices();
  TORCHDION_DISPATCH_FLOATING(U.dtype, "torchdion::column_normalize_", [&] {
    using u_t = scalar_t;
    TORCHDION_DISPATCH_FLOATING(Q.dtype, "torchdion::column_normalize_", [&] {
      using q_t = scalar_t;
      TORCHDION_DISPATCH_FLOATING(R.dtype, "torchdion::column_normalize_", [&] {
        parallel_rows(R, [&](int64_t index, int64_t first, int64_t count) {
          const double scale = scales.const_data_ptr<double>()[index], *norms = inverse + index * R.cols;
          for (int64_t i = first; i < first + count; ++i) {
            u_t* u = U.data.empty() ? nullptr : U.matrix<u_t>(index) + i * U.row_stride;
            q_t* q = Q.matrix<q_t>(index) + i * Q.row_stride;
            const scalar_t* r = R.matrix<const scalar_t>(index) + i * R.row_stride;
            for (int64_t j = 0; j < R.cols; ++j) {
              const bool stays = norms[j] == std::numeric_limits<double>::infinity();
              const double entry = static_cast<double>(r[j * R.col_stride]);
              if (!stays) q[j * Q.col_stride] = static_cast<q_t>(entry * norms[j]);
              if (!u) continue;
              const double unit = static_cast<double>(q[j * Q.col_stride]);
              u[j * U.col_stride] = static_cast<u_t>(stays ? 0 : scale == 0 ? unit : unit - scale * entry);
            }
          }
        });
      });
    });
  });
  if (outputs.copy_of_R.defined()) copy_(Matrices(outputs.copy_of_R), R, 1, {});
}

}  // namespace torchdion::linalg::cpu
