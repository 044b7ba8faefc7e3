#include "algorithms/truncated_svd.h"

#include <ATen/ops/linalg_svd.h>

#include <algorithm>
#include <limits>

#include "algorithms/whole_matrices.h"
#include "linalg/copy.h"

namespace torchdion::algorithms {

namespace {

// P lies like B, but that all ranks which cut the columns have the same rows of it, as copies have.
Layout of_vectors(const Layout& layout) { return {.rows = layout.rows, .copies = layout.cols}; }

BatchShape shape_of_vectors(const BatchShape& shape, const Layout& layout, int64_t r) {
  BatchShape vectors = shape;
  vectors.n = vectors.cols = r;
  vectors.owners[kOnCopies] = shape.owners[kOnCols];
  vectors.owners[kOnCols] = {shape.owners[kOnCols][layout.cols.rank]};
  return vectors;
}

// NaN where a matrix is not finite, of which LAPACK takes none: it must reach the weights, and no other matrix.
at::Tensor leading_vectors(const at::Tensor& whole, int64_t r) {
  const at::Tensor is_finite = whole.isfinite().flatten(1).all(1).view({-1, 1, 1});
  const auto [U, values, Vt] = at::linalg_svd(whole.masked_fill(is_finite.logical_not(), 0), /*full_matrices=*/false);
  const double eps = whole.scalar_type() == at::kDouble ? std::numeric_limits<double>::epsilon()
                                                        : std::numeric_limits<float>::epsilon();
  const double rounding = eps * static_cast<double>(std::max(whole.size(1), whole.size(2)));
  const at::Tensor is_signal = values.gt(values.narrow(1, 0, 1).mul(rounding));
  const at::Tensor vectors = U.narrow(2, 0, r).mul(is_signal.narrow(1, 0, r).unsqueeze(1)).contiguous();
  return vectors.masked_fill_(is_finite.logical_not(), std::numeric_limits<double>::quiet_NaN());
}

// Of the vectors of one side, by a QR first (Golub and Van Loan, Matrix Computations, 8.6.3).
int64_t svd_operations(int64_t m, int64_t n) {
  const int64_t longer = std::max(m, n), shorter = std::min(m, n);
  return 6 * longer * shorter * shorter + 11 * shorter * shorter * shorter;
}

}  // namespace

comm::Task<> left_singular_vectors_(at::Tensor P, linalg::Matrices B, at::Tensor room, Layout layout,
                                    BatchShape shape) {
  const at::Tensor pieces = room.view({shape.count, shape.rows, shape.cols});
  linalg::copy_(linalg::Matrices(pieces), B);
  const Layout there = cuts_of(layout), back = of_vectors(layout);
  const at::Tensor whole = co_await gather_to_owners(pieces, there, shape);
  at::Tensor vectors = whole.new_empty({whole.size(0), shape.m, P.size(2)});
  if (whole.size(0) > 0) vectors = leading_vectors(whole, P.size(2));
  const BatchShape of_P = shape_of_vectors(shape, layout, P.size(2));
  const at::Tensor found = co_await scatter_from_owners(P, vectors, back, of_P);
  if (found.const_data_ptr() != P.const_data_ptr()) P.copy_(found);
}

OwnedWork work_of_svd(const BatchShape& shape, const Layout& layout) {
  return {axes_of_owners(cuts_of(layout)), svd_operations(shape.m, shape.n)};
}

void add_svd(Cost& cost, const BatchShape& shape, const Layout& layout, int64_t r) {
  const int64_t element = element_size(shape.computing);
  Cost back;
  add_way_to_owners(cost, shape, cuts_of(layout), element);
  add_way_from_owners(back, shape_of_vectors(shape, layout, r), of_vectors(layout), element);
  add(cost.rows, back.rows);
  add(cost.cols, back.copies);
  cost.operations += shape.owners[kOnRows][layout.rows.rank] * svd_operations(shape.m, shape.n);
}

}  // namespace torchdion::algorithms
