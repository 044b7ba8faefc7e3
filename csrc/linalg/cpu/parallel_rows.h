// The rows of all matrices of a list, cut into one contiguous piece per thread: balanced whatever the number and the
// size of the matrices, and at most one matrix is split between two threads.
#pragma once

#include <ATen/Parallel.h>

#include <algorithm>

#include "linalg/matrices.h"

namespace torchdion::linalg::cpu {

// Elements of a pass over memory that are worth a thread of their own.
inline constexpr int64_t kElementsPerThread = 16'384;

// Calls body(matrix, first_row, rows) for pieces that cover every row of `count` matrices once. `grain`: rows worth a
// thread of their own.
template <class Body>
void parallel_rows(int64_t count, int64_t rows, int64_t grain, const Body& body) {
  at::parallel_for(0, count * rows, grain, [&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t matrix = begin / rows, first = begin % rows;
      const int64_t piece = std::min(rows - first, end - begin);
      body(matrix, first, piece);
      begin += piece;
    }
  });
}

// Of matrices whose entries are each read or written about once.
template <class Body>
void parallel_rows(const Matrices& A, const Body& body) {
  parallel_rows(A.count(), A.rows, kElementsPerThread / std::max<int64_t>(1, A.cols) + 1, body);
}

// Calls body(matrix) for every matrix: each on one thread when there are enough of them to keep all threads busy,
// else one after the other, with the threads inside its BLAS calls.
template <class Body>
void parallel_matrices(int64_t count, const Body& body) {
  if (count < at::get_num_threads()) {
    for (int64_t i = 0; i < count; ++i) body(i);
    return;
  }
  at::parallel_for(0, count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) body(i);
  });
}

}  // namespace torchdion::linalg::cpu
