#pragma once

#include <torchdion/layout.h>
#include <torchdion/options.h>

#include "algorithms/exchange.h"
#include "comm/sums.h"
#include "comm/task.h"
#include "linalg/matrices.h"
#include "linalg/rates.h"
#include "linalg/step_numbers.h"

namespace torchdion::algorithms {

// Equally shaped matrices with the same hyperparameters, oriented so that the body is Algorithm 1: for
// Orientation::right they are the transposes of the user's. Of cut matrices each is this rank's piece.
struct DionBatch {
  linalg::Matrices X;  // weights, m×n
  linalg::Matrices G;  // gradients, m×n
  linalg::Matrices M;  // momenta with error feedback, m×n
  linalg::Matrices Q;  // right factors, n×r; where the rows of X are cut, a piece of their columns
  Layout layout;
  comm::Order order = comm::Order::any;      // of sums over rows and columns
  bool compressed = true;                    // replicas exchange P and R rather than M
  int64_t global_rows = 0, global_cols = 0;  // of X, over all ranks
  int64_t r = 0;                             // the columns of the whole Q
  double shape_factor = 1;                   // sqrt(fan-out / fan-in) of the user's X
  int64_t step = 0;                          // keys the sketch
  const float* steps_before = nullptr;       // in the memory of the device, where it is counted there: step − 1
  Dealt dealt;                               // matrices to orthonormalize, before this batch
  linalg::SignalCounts counts;               // of columns of P
  linalg::GradientRule gradients;            // how G counts
  linalg::Multipliers multipliers;           // of the learning rate and weight decay
  std::vector<at::Tensor> unchanged;         // of each matrix one FP32 number, not 0: it stays; empty: none does
  at::Tensor workspace;                      // room for P and R: dion_workspace() elements of the computing dtype
};

// Elements of workspace that a batch needs: (m + n) r for each matrix, and n r more for Q where ranks hold pieces of
// its columns, and room for alignment.
int64_t dion_workspace(const DionBatch& batch);

// One step of Dion: Algorithm 1 of arXiv 2504.05295 on whole matrices, Algorithms 3 and 4 on cut ones.
comm::Task<> dion(DionBatch batch, DionHyperparameters hyper);

}  // namespace torchdion::algorithms
