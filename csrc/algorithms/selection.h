// Which rows of matrices have the largest L1 norms, wherever their pieces lie, and how these rows travel.
//
// The choice is the same on all layouts: norms are summed in FP64 and compared by their first 24 bits, so that the
// order of summation decides nothing, unless a norm lies within its rounding of the boundary between two such numbers;
// of equal ones the first are chosen, and NaN is the largest. No host waits: what is chosen changes no size. Of the k
// chosen rows of a matrix a rank sends as many *slots* as it may have of them at most, min(k, rows of the largest
// piece); those that it has are the first, in their order, and the others are zero.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchdion/layout.h>

#include "algorithms/batch.h"
#include "comm/task.h"
#include "linalg/matrices.h"

namespace torchdion::algorithms {

// max(1, ⌈fraction · rows⌉), of the product as FP64 has it.
int64_t chosen_rows(double fraction, int64_t rows);

// The rows of m×n matrices that travel.
struct Slots {
  int64_t chosen;    // k
  int64_t here;      // of a rank
  BatchShape shape;  // of the matrices that all ranks' slots make, of which this rank's slots are its piece

  Slots(const BatchShape& shape, const Layout& layout, int64_t k);
  int64_t numel() const { return shape.count * here * shape.cols; }
};

// The places of the k rows of the largest norms ([count, k], int64, ascending) of matrices B of which this rank has
// pieces, which all ranks of rows and columns get.
comm::Task<at::Tensor> largest_rows(linalg::Matrices B, Layout layout, int64_t m, int64_t k, comm::Order order);

// Of places ([count, k]): which of this rank's rows each of its slots has ([count, slots]), and which of its slots each
// of its rows has ([count, rows]); −1: none. int32.
at::Tensor rows_of_slots(const at::Tensor& places, Piece rows, int64_t slots);
at::Tensor slots_of_rows(const at::Tensor& places, Piece rows);

// Where the chosen rows lie among all ranks' slots ([count, k]), and which of them each of these slots has, or −1
// ([count, all slots]). int32.
at::Tensor slots_of_chosen(const at::Tensor& places, int64_t m, const Axis& axis, int64_t slots);
at::Tensor chosen_of_slots(const at::Tensor& slots_of_chosen, int64_t all_slots);

// What largest_rows() sends of so many matrices.
void add_choice(Cost& cost, int64_t count, const BatchShape& shape, const Layout& layout);

}  // namespace torchdion::algorithms
