#include "linalg/cuda/operations.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "linalg/cuda/tensors.h"

namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE {

void Operations::copy_(const Matrices& A, const Matrices& B, double alpha) {
  if (!A.row_major()) return copy_(A.t(), B.t(), alpha);
  kernels::copy(Listed(A), Listed(B), A.count(), A.rows, A.cols, alpha, stream_of(A.device));
}

void Operations::accumulate_(const Matrices& M, const Matrices& G, double alpha, int64_t* zeroed) {
  if (!M.row_major()) return accumulate_(M.t(), G.t(), alpha, zeroed);
  kernels::accumulate(Listed(M), Listed(G), M.count(), M.rows, M.cols, alpha, zeroed, stream_of(M.device));
}

int64_t Operations::count_nonfinite(const Matrices& G) {
  if (!G.row_major()) return count_nonfinite(G.t());
  const at::Tensor found = at::zeros({1}, at::TensorOptions(at::kLong).device(G.device));
  kernels::count_nonfinite(Listed(G), G.count(), G.rows, G.cols, found.mutable_data_ptr<int64_t>(),
                           stream_of(G.device));
  return found.item<int64_t>();
}

at::Tensor Operations::column_square_sums(const Matrices& R) {
  at::Tensor memory;
  const Matrices by_rows = with_contiguous_rows(R, memory);
  const at::Tensor sums = at::empty({R.count(), R.cols}, at::TensorOptions(at::kDouble).device(R.device));
  kernels::column_square_sums(Listed(by_rows), R.count(), R.rows, R.cols, sums.mutable_data_ptr<double>(),
                              stream_of(R.device));
  return sums;
}

void Operations::column_normalize_(const Matrices& Q, const Matrices& R, const at::Tensor& square_sums) {
  at::Tensor q_memory, r_memory;
  const Matrices q = with_contiguous_rows(Q, q_memory), r = with_contiguous_rows(R, r_memory);
  kernels::column_normalize(Listed(q), Listed(r), R.count(), R.rows, R.cols,
                            square_sums.defined() ? square_sums.const_data_ptr<double>() : nullptr,
                            stream_of(R.device));
  if (q_memory.defined()) copy_(Q, q, 1);
}

void Operations::sketch_(const at::Tensor& out, RandomMatrix random, int64_t row_offset, int64_t col_offset,
                         double standard_deviation) {
  const kernels::SketchPlace place{out.size(0),
                                   out.size(1),
                                   row_offset,
                                   col_offset,
                                   static_cast<uint64_t>(random.seed),
                                   static_cast<uint64_t>(random.stream),
                                   nullptr};
  kernels::sketch(out.mutable_data_ptr(), storage_of(out.scalar_type()), place, standard_deviation,
                  stream_of(out.device()));
}

}  // namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE
