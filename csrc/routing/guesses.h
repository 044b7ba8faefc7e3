// Guesses from the shape of a parameter of three or more dimensions, where no layer and no name decides.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace torchdion::routing {

// How many dimensions in front of its matrices count them; none: the shape does not say that it holds any.
// (layers, heads, m, n) is a stack where no matrix has fewer rows or columns than there are of them; (out, in, k, k) is
// a kernel, (copies, out, in, k, k) are several. is_named: its name says that it is a matrix, so that one of
// (d, heads, n) is (d, heads · n), and a leading 1 may be a stack of one.
std::optional<int64_t> batch_dims_by_shape(const std::vector<int64_t>& sizes, bool is_named);

// The advice about a parameter of this name that is taken for a convolution, one matrix of its first dimension, and has
// the shape of something else; empty: there is no doubt.
std::string advice_on_stack(const std::vector<int64_t>& sizes, const std::string& name);

}  // namespace torchdion::routing
