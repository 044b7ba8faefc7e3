#include "engine/gradients.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/nan_to_num.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "algorithms/all.h"
#include "comm/blocking.h"
#include "comm/sums.h"
#include "engine/shapes.h"
#include "linalg/accumulate.h"
#include "words.h"

namespace torchdion::engine {

namespace {

// How many entries of those on a device are NaN or infinite: one number there.
at::Tensor count_nonfinite_on(c10::Device device, const std::vector<at::Tensor>& gradients) {
  const c10::DeviceGuard guard(device);
  const at::Tensor found = at::zeros({1}, at::TensorOptions(at::kLong).device(device));
  std::map<std::pair<at::ScalarType, int64_t>, std::vector<at::Tensor>> alike;  // those that one call takes
  for (const at::Tensor& G : gradients) {
    if (G.device() == device && G.numel() > 0) {
      alike[{G.scalar_type(), G.numel()}].push_back(G.contiguous().view({1, -1}));
    }
  }
  for (const auto& [kind, rows] : alike) {
    linalg::count_nonfinite(linalg::Matrices(rows), found.mutable_data_ptr<int64_t>());
  }
  return found;
}

int64_t count_nonfinite(const std::vector<at::Tensor>& gradients) {
  std::vector<c10::Device> devices;
  int64_t found = 0;
  for (const at::Tensor& G : gradients) {
    if (std::ranges::find(devices, G.device()) != devices.end()) continue;
    devices.push_back(G.device());
    found += count_nonfinite_on(G.device(), gradients).item<int64_t>();
  }
  return found;
}

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

void materialize(std::vector<at::Tensor>& gradients) {
  for (at::Tensor& G : gradients) {
    if (G._is_zerotensor()) G = at::zeros(G.sizes(), G.options());
    if (G.is_neg()) G = G.resolve_neg();
  }
}

std::string raising() { return algorithms::assigned(*algorithms::option("nonfinite"), std::string_view("raise")); }

Decision decide(const NonfinitePolicy& policy, const std::vector<at::Tensor>& gradients,
                const std::vector<Axis>& axes) {
  if (policy.found_inf.defined() && comm::largest_of_ranks(policy.found_inf.item<double>(), axes) != 0) return {true};
  if (!policy.looks_at_gradients()) return {};
  Decision all{false, count_nonfinite(gradients)};
  all.left_out = comm::largest_of_ranks(static_cast<double>(all.nonfinite), axes) != 0;
  TORCH_CHECK_VALUE(!all.left_out || policy.nonfinite == Nonfinite::skip_step, prefix(),
                    all.nonfinite > 0 ? std::to_string(all.nonfinite) : "another rank's",
                    " gradient entries are NaN or infinite (", raising(), ")");
  return all;
}

std::vector<at::Tensor> decide_on_devices(const NonfinitePolicy& policy, const std::vector<at::Tensor>& gradients,
                                          const std::vector<Axis>& axes, const std::vector<at::Tensor>& left_out) {
  const at::Tensor& first = left_out.front();
  std::vector<at::Tensor> counts;
  first.zero_();
  const auto leave_out_if = [&](const at::Tensor& number) {
    first.logical_or_(number.view({1}).to(first.device(), /*non_blocking=*/first.is_cuda()));
  };
  if (policy.found_inf.defined()) leave_out_if(policy.found_inf);
  if (policy.nonfinite == Nonfinite::skip_step) {
    for (const at::Tensor& flag : left_out) {
      counts.push_back(count_nonfinite_on(flag.device(), gradients));
      leave_out_if(counts.back());
    }
  }
  for (const Axis& axis : axes) comm::max_(first, axis);
  for (const at::Tensor& flag : left_out) {
    if (!flag.is_same(first)) flag.copy_(first, /*non_blocking=*/flag.is_cuda());
  }
  return counts;
}

void allocate_unchanged(Group& group) {
  for (const at::Tensor& X : group.X) {
    const std::vector<int64_t> sizes = matrix_sizes(X.sizes(), form_of(group.options));
    const int64_t count = c10::multiply_integers(sizes.begin(), sizes.end() - 2);
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
