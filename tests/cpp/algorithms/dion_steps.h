// Steps of Dion on a stack of matrices in one process, and what a GPU is given to do in one.
#pragma once

#include "algorithms/batch.h"
#include "algorithms/options_by_name.h"
#include "algorithms/shared.h"
#include "algorithms/table.h"
#include "algorithms/textbook.h"
#include "comm/ranks_as_threads.h"
#include "comm/scheduler.h"
#include "linalg/backend.h"
#include "linalg/recorder.h"

namespace torchdion::algorithms {

using linalg::Matrices;

// A stack of weights with its state, and the gradients of a few steps.
struct Problem {
  at::Tensor X, M, Q;
  std::vector<at::Tensor> gradients;
};

inline Problem problem(int64_t count, int64_t m, int64_t n, int64_t r, Orientation orientation, at::ScalarType dtype) {
  const int64_t q_rows = orientation == Orientation::right ? m : n;
  Problem made{
      normal({count, m, n}, 1, dtype), at::zeros({count, m, n}, dtype), normal({count, q_rows, r}, 2, dtype), {}};
  for (uint64_t step = 0; step < 6; ++step) made.gradients.push_back(normal({count, m, n}, 10 + step, dtype));
  return made;
}

// The batch that the engine makes of a stack of matrices in one process. It points into p and G, which must outlive it.
inline Batch batch_of(const Problem& p, const at::Tensor& G, Orientation orientation, int64_t step,
                      const Options& options) {
  Batch batch;
  batch.X = Matrices(p.X);
  batch.G = Matrices(G);
  batch.states = {Matrices(p.M), Matrices(p.Q)};
  if (orientation == Orientation::right) {
    batch.X = batch.X.t();
    batch.G = batch.G.t();
    batch.states[0] = batch.states[0].t();
  }
  batch.shape = {.count = p.X.size(0),
                 .numel = p.X.numel(),
                 .m = batch.X.rows,
                 .n = batch.X.cols,
                 .ranks = {p.Q.size(-1)},
                 .rows = batch.X.rows,
                 .cols = batch.X.cols,
                 .owners = {{p.X.size(0)}, {p.X.size(0)}},
                 .parameter = p.X.scalar_type(),
                 .computing = linalg::compute_dtype({batch.X.dtype}),
                 .states = {p.M.scalar_type(), p.Q.scalar_type()}};
  batch.factors.shape_factor = std::sqrt(static_cast<double>(p.X.size(-2)) / static_cast<double>(p.X.size(-1)));
  batch.step = step;
  batch.workspace = at::empty({kDion.cost(batch.shape, {}, options).workspace}, batch.shape.computing);
  return batch;
}

// Options of Dion, with the method by its enumerator.
inline Options options_of(Orthonormalize method, NamedValues values) {
  Options options = options_of(kDion, values);
  options.set("orthonormalize", text_of(option("orthonormalize")->allowed.choices, method));
  return options;
}

inline Options options_of(Precision precision, NamedValues values) {
  Options options = options_of(kDion, values);
  options.set("precision", text_of(kPrecision, precision));
  return options;
}

inline void take_step(const Problem& p, const at::Tensor& G, Orientation orientation, int64_t step,
                      const Options& options) {
  comm::run(update(kDion, batch_of(p, G, orientation, step, options), options));
}

// Steps with all of a problem's gradients, and the textbook's beside them.
inline void take_steps(const Problem& p, Textbook& textbook, Orientation orientation, const Options& options) {
  int64_t step = 0;
  for (const at::Tensor& G : p.gradients) {
    take_step(p, G, orientation, ++step, options);
    textbook.step(G, orientation);
  }
}

// Counts the launches of one step of `count` n×n matrices of one shape, once a GPU knows where they lie.
inline int64_t launches_of_step(int64_t count, int64_t n, int64_t r, Precision precision, NamedValues values = {}) {
  const Problem p = problem(count, n, n, r, Orientation::right, at::kFloat);
  const linalg::Recorder recorder;
  take_step(p, p.gradients[0], Orientation::right, 1, options_of(precision, values));
  int64_t launches = 0;
  for (const linalg::Launches& each : recorder.launches()) {
    if (!each.name.starts_with("Upload")) launches += each.count;
  }
  return launches;
}

}  // namespace torchdion::algorithms
