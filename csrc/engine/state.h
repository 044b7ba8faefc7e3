// How the state of a parameter starts.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchdion/layout.h>
#include <torchdion/options.h>

#include "engine/matrix_form.h"

namespace torchdion::engine {

// The rank r of an m×n matrix: ⌈rank_fraction · min(m, n)⌉, rounded up to a multiple, at most min(m, n). Counts what
// binary fractions leave over an integer as rounding: 0.07 of 100 is 7.
int64_t rank_of(int64_t m, int64_t n, double rank_fraction, int64_t rank_multiple_of);

struct QStart {
  Orientation orientation = Orientation::right;
  double rank_fraction = 1;
  int64_t rank_multiple_of = 1;
  int64_t seed = 0;
  int64_t parameter = 0;  // the parameter's place among all of the optimizer
};

// The sizes [stack..., m or n, r] of the Q of a whole parameter of these sizes.
std::vector<int64_t> sizes_of_Q(at::IntArrayRef sizes, MatrixForm form, const QStart& start);

// This rank's piece of the Q of a whole parameter of these sizes before the first step: independent
// N(0, 1 / rows) entries, which depend on seed, parameter, place in the stack, row and column alone. They are drawn on
// the device of the options, with the same bits on every device.
at::Tensor start_of_Q(at::IntArrayRef sizes, MatrixForm form, const QStart& start, at::TensorOptions options,
                      const Layout& layout = {});

// A whole Q ([stack..., rows, old r]) with r columns. Fewer are the first ones: as each column of P and R depends on
// those before it alone, they go on as in a run of that rank. More are those of a fresh start, made orthonormal to the
// ones before them.
at::Tensor resized_Q(const at::Tensor& Q, int64_t r, int64_t seed, int64_t parameter);

}  // namespace torchdion::engine
