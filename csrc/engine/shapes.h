// The whole matrices of parameters of which this rank may hold pieces.
#pragma once

#include <torchdion/layout.h>

#include <vector>

#include "engine/groups.h"

namespace torchdion::engine {

// The matrices of one parameter, over all ranks and in the user's orientation.
struct ParameterShape {
  std::vector<int64_t> stack;  // [stack...]
  int64_t m = 0, n = 0, r = 0;
  bool right = true;  // Q is m×r, else n×r
};

// The layout of parameter i; that of a whole one where the group has none.
const Layout& layout_of(const std::vector<Layout>& layouts, std::size_t i);

// The sizes and the number of elements of the whole parameter.
at::IntArrayRef whole_sizes(const at::Tensor& X, const Layout& layout);
int64_t whole_numel(const at::Tensor& X, const Layout& layout);

// Throws c10::ValueError where Q, or the piece of the parameter that is here, is not what the layout says.
ParameterShape shape_of(const DionGroup& group, std::size_t i);

// The sizes of this rank's piece of a Q of these sizes. The axis that cuts the side that Q shares with the parameter
// cuts its rows, the other its columns.
std::vector<int64_t> piece_of_Q(const std::vector<int64_t>& whole_Q, Orientation orientation, const Layout& layout);

// Whether replicas of m×n matrices exchange P and R, (m + n) r elements, rather than M, m n: by the largest piece that
// a rank holds, so that all decide alike.
bool compresses(int64_t m, int64_t n, int64_t r, const Layout& layout);

// Whether two layouts are made of the same groups, cut in the same order.
bool is_same(const Layout& a, const Layout& b);

}  // namespace torchdion::engine
