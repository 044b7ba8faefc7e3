#include "engine/zero_gradients.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/nan_to_num.h>

#include <functional>
#include <numeric>

#include "comm/copies.h"
#include "engine/shapes.h"
#include "linalg/matrices.h"

namespace torchdion::engine {

namespace {

at::Tensor matrices_of(const at::Tensor& tensor, const MatrixForm& form) {
  const std::optional<at::Tensor> view = matrix_view(tensor, form);
  return view ? *view : *matrix_view(tensor.contiguous(), form);
}

bool sums_over(const Layout& layout, const Axis& axis) {
  return layout.rows.line == axis.line || layout.cols.line == axis.line || layout.replicas.line == axis.line;
}

// Each number ← the largest of the axis' ranks.
void largest_of_ranks(const std::vector<at::Tensor>& numbers, const Axis& axis) {
  std::vector<int64_t> sizes;
  std::vector<at::Tensor> on_one_device;
  for (const at::Tensor& tensor : numbers) {
    sizes.push_back(tensor.numel());
    on_one_device.push_back(tensor.to(numbers.front().device()));
  }
  const at::Tensor all = at::cat(on_one_device);
  comm::max_(all, axis);
  const std::vector<at::Tensor> parts = all.split_with_sizes(sizes);
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i].copy_(parts[i]);
}

}  // namespace

void allocate_unchanged(Group& group) {
  for (const at::Tensor& X : group.X) {
    const std::vector<int64_t> sizes = matrix_sizes(X.sizes(), form_of(group.options));
    const int64_t count = std::accumulate(sizes.begin(), sizes.end() - 2, int64_t{1}, std::multiplies<>());
    group.unchanged.push_back(at::empty({count}, X.options().dtype(at::kFloat)));
  }
}

void find_unchanged(const std::vector<Group>& groups, const std::vector<Axis>& axes, bool nonfinite_are_zero) {
  for (const Group& group : groups) {
    for (std::size_t i = 0; i < group.unchanged.size(); ++i) {
      at::Tensor G = matrices_of(group.G[i], form_of(group.options));
      if (nonfinite_are_zero) G = at::nan_to_num(G, 0, 0, 0);
      // How many entries are not zero, NaN among them.
      const at::ScalarType dtype = linalg::compute_dtype({G.scalar_type()});
      const at::Tensor found = at::linalg_vector_norm(G, 0, at::IntArrayRef{-2, -1}, false, dtype);
      group.unchanged[i].copy_(found.ne(0).view({-1}));
    }
  }
  for (const Axis& axis : axes) {
    std::vector<at::Tensor> along;
    for (const Group& group : groups) {
      for (std::size_t i = 0; i < group.unchanged.size(); ++i) {
        if (sums_over(layout_of(group.layouts, i), axis)) along.push_back(group.unchanged[i]);
      }
    }
    if (!along.empty()) largest_of_ranks(along, axis);
  }
  for (const Group& group : groups) {
    for (const at::Tensor& numbers : group.unchanged) numbers.neg_().add_(1);
  }
}

void leave_unchanged(const std::vector<Group>& groups, const at::Tensor& left_out) {
  for (const Group& group : groups) {
    for (const at::Tensor& numbers : group.unchanged) {
      if (numbers.device() == left_out.device()) numbers.masked_fill_(left_out.ne(0), 1);
    }
  }
}

}  // namespace torchdion::engine
