// The whole matrices of parameters of which this rank may hold pieces.
#pragma once

#include <torchdion/layout.h>

#include <span>
#include <string>
#include <vector>

#include "engine/groups.h"
#include "engine/matrix_form.h"

namespace torchdion::engine {

// The matrices of one parameter, over all ranks and in the user's orientation.
struct ParameterShape {
  std::vector<int64_t> stack;  // [stack...]
  int64_t m = 0, n = 0;
  std::vector<int64_t> ranks;  // r of each factor
  bool right = false;          // factors are m×r, else n×r
};

// The layout of parameter i; that of a whole one where the group has none.
const Layout& layout_of(const std::vector<Layout>& layouts, std::size_t i);

// The sizes of the whole parameter.
at::IntArrayRef whole_sizes(const at::Tensor& X, const Layout& layout);

// Of a group whose algorithm takes matrices. Throws c10::ValueError where a state, or the piece of the parameter that
// is here, is not what the layout says.
ParameterShape shape_of(const Group& group, std::size_t i);

// Whether a factor of the parameter's matrices is m×r: what its rows tell, those of a square matrix by the option.
bool is_right(at::IntArrayRef factor, at::IntArrayRef sizes, const algorithms::Options& options);

// Whether replicas of m×n matrices have states of their own: by the largest piece that a rank holds, so that all decide
// alike.
bool decouples(const algorithms::Algorithm& algorithm, int64_t m, int64_t n, std::span<const int64_t> ranks,
               const algorithms::Options& options, const Layout& layout);

// Throws c10::ValueError for a layout on which a parameter of these whole sizes, and with factors of these, cannot
// follow its options.
void check_layout(const algorithms::Algorithm& algorithm, at::IntArrayRef sizes,
                  const std::vector<std::vector<int64_t>>& factors, const algorithms::Options& options,
                  const Layout& layout, const std::string& name);

// The states of a parameter of these whole sizes, whose factors have so many columns, of which each replica has its
// own.
std::vector<std::string> decoupled_states(const algorithms::Algorithm& algorithm, at::IntArrayRef sizes,
                                          std::span<const int64_t> ranks, const algorithms::Options& group,
                                          const Layout& layout);

// Whether two layouts are made of the same groups, cut in the same order.
bool is_same(const Layout& a, const Layout& b);

}  // namespace torchdion::engine
