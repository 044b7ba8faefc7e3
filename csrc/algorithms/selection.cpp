#include "algorithms/selection.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/floor_divide.h>
#include <ATen/ops/full.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <cmath>

#include "algorithms/whole_matrices.h"
#include "comm/line.h"
#include "comm/sums.h"
#include "linalg/rows.h"
#include "linalg/top_k.h"

namespace torchdion::algorithms {

using linalg::Matrices;

namespace {

constexpr int64_t kFP64 = 8;

// The numbers ([count, m]) of which this rank and the others of the axis that cuts m have pieces ([count, rows]).
comm::Task<at::Tensor> gather_numbers(at::Tensor piece, int64_t m, Axis axis) {
  if (axis.absent()) co_return piece;
  const at::Tensor buffer = at::empty({piece.size(0), m}, piece.options()), numbers = at::empty_like(buffer);
  co_await gather_side_(numbers, piece, buffer, 1, axis);
  co_return numbers;
}

// How many of each matrix's places are below a row ([count, 1]).
at::Tensor chosen_below(const at::Tensor& places, int64_t row) { return places.lt(row).sum(1, /*keepdim=*/true); }

at::Tensor count_up(int64_t count, const at::Tensor& like) { return at::arange(count, like.options()); }

// The number of the piece of m that has each of these places, in the order of pieces.
at::Tensor pieces_of(const at::Tensor& places, int64_t m, const Axis& axis) {
  at::Tensor rest = places, size = at::full({}, m, places.options()), number = places * 0;
  for (const int chunks : axis.line->options.chunks) {
    const at::Tensor length = at::floor_divide(size + (chunks - 1), chunks).clamp_min(1);
    const at::Tensor chunk = at::floor_divide(rest, length), begin = chunk * length;
    number = number * chunks + chunk;
    size = at::minimum(length, size - begin);
    rest = rest - begin;
  }
  return number;
}

}  // namespace

int64_t chosen_rows(double fraction, int64_t rows) {
  return std::max<int64_t>(1, static_cast<int64_t>(std::ceil(fraction * static_cast<double>(rows))));
}

Slots::Slots(const BatchShape& of_matrices, const Layout& layout, int64_t k)
    : chosen(k), here(std::min(k, layout.rows.largest_piece(of_matrices.m))), shape(of_matrices) {
  shape.m = here * layout.rows.size;
  shape.rows = here;
}

comm::Task<at::Tensor> largest_rows(Matrices B, Layout layout, int64_t m, int64_t k, comm::Order order) {
  const Axis rows = layout.rows, cols = layout.cols;
  at::Tensor norms = linalg::row_sums(B, linalg::RowSum::magnitudes);
  co_await comm::sum(norms, cols, order);
  norms = co_await gather_numbers(norms, m, rows);
  co_return linalg::choose_rows(norms, k).rows.to(at::kLong);
}

at::Tensor rows_of_slots(const at::Tensor& places, Piece rows, int64_t slots) {
  const int64_t k = places.size(1);
  const at::Tensor index = count_up(slots, places) + chosen_below(places, rows.begin);
  const at::Tensor row = places.gather(1, index.clamp_max(k - 1)) - rows.begin;
  const at::Tensor is_filled = index.lt(chosen_below(places, rows.end()));
  return at::where(is_filled, row, -1).to(at::kInt);
}

at::Tensor slots_of_rows(const at::Tensor& places, Piece rows) {
  const int64_t count = places.size(0), k = places.size(1);
  const at::Tensor row = places - rows.begin, slot = count_up(k, places) - chosen_below(places, rows.begin);
  const at::Tensor is_here = row.ge(0).logical_and_(row.lt(rows.size));
  const at::Tensor all = at::full({count, rows.size + 1}, -1, places.options());  // the last: of rows that others have
  all.scatter_(1, at::where(is_here, row, rows.size), slot);
  return all.narrow(1, 0, rows.size).to(at::kInt).contiguous();
}

at::Tensor slots_of_chosen(const at::Tensor& places, int64_t m, const Axis& axis, int64_t slots) {
  const at::Tensor piece = pieces_of(places, m, axis);
  const at::Tensor before = at::searchsorted(piece, piece);  // chosen rows of pieces before it
  return (piece * slots + count_up(places.size(1), places) - before).to(at::kInt);
}

at::Tensor chosen_of_slots(const at::Tensor& slots_of_chosen, int64_t all_slots) {
  const int64_t count = slots_of_chosen.size(0), k = slots_of_chosen.size(1);
  const at::Tensor all = at::full({count, all_slots}, -1, slots_of_chosen.options());
  all.scatter_(1, slots_of_chosen.to(at::kLong), count_up(k, slots_of_chosen).expand({count, k}));
  return all;
}

void add_choice(Cost& cost, int64_t count, const BatchShape& shape, const Layout& layout) {
  if (!layout.cols.absent()) add(cost.cols, all_reduced(count * shape.rows, kFP64, layout.cols));
  if (!layout.rows.absent()) {
    const int64_t own = count * shape.rows * kFP64;
    add(cost.rows, {count * shape.m, own * (layout.rows.size - 1)});
  }
}

}  // namespace torchdion::algorithms
