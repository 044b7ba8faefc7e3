// The states of a parameter: their sizes, and how they start.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchdion/layout.h>

#include <string>

#include "algorithms/all.h"

namespace torchdion::engine {

// "state momentum"
std::string title_of(const algorithms::State& state);

// The rank r of an m×n matrix: ⌈rank_fraction · min(m, n)⌉, rounded up to a multiple, at most min(m, n). Counts what
// binary fractions leave over an integer as rounding: 0.07 of 100 is 7.
int64_t rank_of(int64_t m, int64_t n, double rank_fraction, int64_t rank_multiple_of);

// Whether a new factor of a parameter of these whole sizes, m×n matrices, is m×r: by the option "orientation".
bool starts_right(at::IntArrayRef sizes, const algorithms::Options& group);

// The sizes of the whole state of a new parameter of these whole sizes, by the options of its group.
std::vector<int64_t> whole_state_sizes(const algorithms::State& state, at::IntArrayRef sizes,
                                       const algorithms::Options& group);

// The sizes of this rank's piece of that state; `local`: those of the parameter's own piece.
std::vector<int64_t> piece_of_state_sizes(const algorithms::State& state, at::IntArrayRef sizes, at::IntArrayRef local,
                                          const algorithms::Options& group, const Layout& layout);

// This rank's piece of a state of a whole parameter of these sizes before the first step. One that starts normal has
// independent N(0, 1 / rows) entries, which depend on the seed, the parameter's number among all of the optimizer, the
// index in the stack, row and column alone; they are drawn on the device of the options, with the same bits on every
// device.
at::Tensor start_of(const algorithms::State& state, at::IntArrayRef sizes, at::IntArrayRef local,
                    const algorithms::Options& group, int64_t parameter, at::TensorOptions options,
                    const Layout& layout = {});

// A whole factor ([stack..., rows, old r]) with r columns. Fewer are the first ones: as each column of P and R depends
// on those before it alone, they go on as in a run of that rank. More are those of a fresh start, made orthonormal to
// the ones before them.
at::Tensor resized_factor(const algorithms::State& state, const at::Tensor& Q, int64_t r, int64_t seed,
                          int64_t parameter);

}  // namespace torchdion::engine
