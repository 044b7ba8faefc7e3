#include "routing/guesses.h"

#include <c10/util/accumulate.h>

#include <algorithm>

#include "algorithms/all.h"
#include "words.h"

namespace torchdion::routing {

namespace {

using Sizes = std::vector<int64_t>;

constexpr int64_t kLargestKernel = 7;

int64_t shorter_side(const Sizes& sizes) { return std::min(sizes[sizes.size() - 2], sizes.back()); }

// As many matrices as have rows and columns, or fewer: kernels and (width, heads, head) have more.
bool may_count_matrices(const Sizes& sizes) {
  return std::all_of(sizes.begin(), sizes.end() - 2, [&](int64_t size) { return size <= shorter_side(sizes); });
}

bool is_square(const Sizes& sizes) { return sizes[sizes.size() - 2] == sizes.back(); }
bool is_cubic(const Sizes& sizes) { return is_square(sizes) && sizes[sizes.size() - 3] == sizes.back(); }

// Kernels have odd sizes but for those with strides.
bool ends_in_a_kernel(const Sizes& sizes) {
  return is_square(sizes) && sizes.back() % 2 == 1 && sizes.back() <= kLargestKernel;
}

std::optional<int64_t> batch_dims_of_kernels(const Sizes& sizes, bool is_named) {
  const bool is_strided = is_named && is_square(sizes) && sizes.back() < std::min(sizes[0], sizes[1]);
  if (sizes.size() == 4 && (ends_in_a_kernel(sizes) || is_strided) && (sizes[0] > 1 || is_named)) return 0;
  if (sizes.size() != 5 || !ends_in_a_kernel(sizes)) return std::nullopt;
  if (is_cubic(sizes)) return sizes[0] > 1 || is_named ? std::optional(int64_t{0}) : std::nullopt;
  return sizes[1] > 1 ? std::optional(int64_t{1}) : std::nullopt;
}

// Of what is taken for a convolution: all of three dimensions, and those of more which are no kernel and have one row
// or may be a stack.
bool is_doubtful_kernel(const Sizes& sizes) {
  if (sizes.size() < 4) return sizes.size() == 3;
  if (ends_in_a_kernel(sizes) && (sizes.size() == 4 || is_cubic(sizes))) return false;
  return sizes[0] == 1 || may_count_matrices(sizes);
}

}  // namespace

std::optional<int64_t> batch_dims_by_shape(const Sizes& sizes, bool is_named) {
  const auto dims = static_cast<int64_t>(sizes.size());
  if (may_count_matrices(sizes) && (sizes[0] > 1 || is_named)) return dims - 2;
  if (dims == 3) return is_named ? std::optional(int64_t{0}) : std::nullopt;
  return batch_dims_of_kernels(sizes, is_named);
}

std::string advice_on_stack(const Sizes& sizes, const std::string& name) {
  if (!is_doubtful_kernel(sizes)) return "";
  const algorithms::Option& option = *algorithms::option("batch_dims");
  const int64_t columns = c10::multiply_integers(sizes.begin() + 1, sizes.end());
  return c10::str(name, " has shape ", shown(at::IntArrayRef(sizes)), " and is taken for a convolution, one matrix of ",
                  sizes[0], "×", columns, "; set ", algorithms::assigned(option, int64_t(sizes.size()) - 2),
                  " in its group if it is a stack of matrices, ", algorithms::assigned(option, int64_t{0}), " if not");
}

}  // namespace torchdion::routing
