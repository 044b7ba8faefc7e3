// What one task updates together.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <torchdion/layout.h>

#include <utility>
#include <vector>

#include "algorithms/shared.h"
#include "comm/sums.h"
#include "linalg/cholesky_qr.h"
#include "linalg/elementwise.h"
#include "linalg/matrices.h"
#include "linalg/rates.h"
#include "linalg/step_numbers.h"

namespace torchdion::algorithms {

struct Batch {
  // Of an algorithm that takes matrices: equally shaped ones. Where a factor of Orientation::right is among the states,
  // weights, gradients and states like them are the transposes of the user's. Of cut matrices each is this rank's
  // piece.
  linalg::Matrices X, G;                 // weights and gradients, m×n
  std::vector<linalg::Matrices> states;  // in the order of the declaration: m×n, factors n×r, rows m×1
  std::vector<at::Tensor> marks;         // of each matrix one FP32 number, not 0: it stays; empty: none does
  int64_t step = 0;                      // this one included, or its class: Algorithm::class_of_step
  const float* steps_before = nullptr;   // in the memory of the device, where it is counted there: step − 1

  // Of one that takes elements: whole tensors. Where replicas average, its G are views of `mean`.
  linalg::ElementwiseLists lists;
  std::vector<at::Tensor> own;  // gradients of this replica
  at::Tensor mean;

  BatchShape shape;
  Layout layout;                         // as the body sees the matrices
  comm::Order order = comm::Order::any;  // of sums over rows and columns
  linalg::SignalCounts counts;           // of columns of factors
  at::Tensor workspace;                  // as the cost has it

  // How the step counts gradients and moves weights. as_asked() completes them.
  linalg::GradientRule gradients;   // with the sign of `maximize`
  linalg::FactorRule factors;       // learning rate, weight decay, and sqrt(fan-out / fan-in) of the user's X
  linalg::DirectionRule direction;  // which entries decay
  linalg::Frozen frozen;            // the same in all three: which matrices stay
  at::Tensor unchanged;             // the marks of all; undefined where there are none
};

// The batch as an algorithm takes it: with what options say that all algorithms have, and the marks as they are now.
inline Batch as_asked(Batch batch, const Options& options) {
  if (!batch.marks.empty()) {
    batch.unchanged = at::cat(batch.marks);
    batch.frozen.unchanged = batch.unchanged.const_data_ptr<float>();
  }
  if (options.flag("maximize")) batch.gradients.factor *= -1;
  batch.factors.rates = {options.number("lr"), options.number("weight_decay")};
  batch.direction.decay = decay_asked(options);
  batch.gradients.frozen = batch.factors.frozen = batch.direction.frozen = batch.frozen;
  return batch;
}

// A step of the algorithm.
inline comm::Task<> update(Algorithm algorithm, Batch batch, Options options) {
  Batch asked = as_asked(std::move(batch), options);
  return algorithm.update(std::move(asked), std::move(options));
}

}  // namespace torchdion::algorithms
