// Which dimensions of parameters and their states the axes of a layout cut.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchdion/layout.h>

#include <string>
#include <vector>

#include "algorithms/all.h"

namespace torchdion::engine {

// Dimensions of a tensor; -1: it is whole along that axis.
struct Cuts {
  int64_t rows = -1, cols = -1, batch = -1;
};

// Of the tensor of a parameter of so many dimensions, by the options of its group. Parameters of another algorithm than
// one for matrices have the same names for their dimensions.
Cuts cuts_of_parameter(int64_t dims, const algorithms::Options& group);

// Throws c10::ValueError for a dimension of a parameter of this name and whole sizes that no algorithm's layout may
// cut.
void check_cut(int64_t dim, at::IntArrayRef sizes, const algorithms::Options& group, const std::string& name);

// Of its matrices ([stack..., m, n], of so many dimensions).
Cuts cuts_of_matrices(int64_t dims, const algorithms::Options& group);

// Of a state of so many dimensions. The axis that cuts the side of the matrices which a factor shares with them cuts
// its rows, the other its columns; `right`: that side is m.
Cuts cuts_of_state(const algorithms::State& state, int64_t dims, const Cuts& parameter, bool right);

// The sizes of this rank's piece of a whole tensor.
std::vector<int64_t> piece_sizes(at::IntArrayRef whole, const Cuts& cuts, const Layout& layout);
// The piece itself, a view.
at::Tensor piece_of(const at::Tensor& whole, const Cuts& cuts, const Layout& layout);
// The whole tensor of which every rank gives its piece. Waits for them.
at::Tensor gather(const at::Tensor& piece, at::IntArrayRef whole, const Cuts& cuts, const Layout& layout);

}  // namespace torchdion::engine
