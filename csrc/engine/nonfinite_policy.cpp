#include "engine/nonfinite_policy.h"

#include <algorithm>
#include <string>

#include "algorithms/all.h"
#include "comm/copies.h"
#include "comm/sums.h"
#include "engine/gradients.h"
#include "linalg/memory.h"
#include "words.h"

namespace torchdion::engine {

namespace {

int64_t count_nonfinite(const std::vector<at::Tensor>& gradients) {
  std::vector<c10::Device> devices;
  int64_t found = 0;
  for (const at::Tensor& G : gradients) {
    if (std::find(devices.begin(), devices.end(), G.device()) != devices.end()) continue;
    devices.push_back(G.device());
    found += count_nonfinite_on(G.device(), gradients).item<int64_t>();
  }
  return found;
}

}  // namespace

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

void check_number(const at::Tensor& tensor, const char* what) {
  TORCH_CHECK_VALUE(linalg::has_memory(tensor) && !tensor.is_neg(), prefix(), what,
                    " must be a tensor of one real number with memory of its own, got ", tensor.toString());
  TORCH_CHECK_VALUE(tensor.numel() == 1 && !tensor.is_complex(), prefix(), what,
                    " must be a tensor of one real number, got ", tensor.toString(), " of shape ", tensor.sizes());
}

}  // namespace torchdion::engine
