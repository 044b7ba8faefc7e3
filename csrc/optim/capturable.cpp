#include "optim/capturable.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "linalg/backend.h"
#include "optim/groups.h"
#include "optim/options.h"
#include "optim/parameters.h"
#include "torch_versions.h"
#include "words.h"

namespace torchdion::optim {

using torch::optim::OptimizerParamGroup;

bool is_captured(const at::Tensor& param) {
  return linalg::has_backend(param.device().type()) && linalg::backend_of(param.device()).is_capturing(param.device());
}

bool is_captured(const std::vector<OptimizerParamGroup>& groups) {
  return std::any_of(groups.begin(), groups.end(), [](const OptimizerParamGroup& group) {
    return !group.params().empty() && is_captured(group.params().front());
  });
}

void write_rates(const Options& options) {
  const at::NoGradGuard no_grad;
  if (options.lr_tensor().defined()) options.lr_tensor().fill_(options.lr());
  if (options.weight_decay_tensor().defined()) options.weight_decay_tensor().fill_(options.weight_decay());
}

void check_shared_rates(const std::vector<OptimizerParamGroup>& groups) {
  const auto check = [](const char* name, const at::Tensor& tensor, double number, const at::Tensor& others,
                        double other, std::size_t index) {
    TORCH_CHECK_VALUE(!tensor.defined() || !tensor.is_same(others) || number == other, prefix(), name,
                      " must be the same in groups that share its tensor, got ", number, " beside ", other,
                      group_name(index));
  };
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const Options& one = options_of(groups[i], i);
    for (std::size_t k = 0; k < i; ++k) {
      const Options& other = options_of(groups[k], k);
      check("lr", one.lr_tensor(), one.lr(), other.lr_tensor(), other.lr(), i);
      check("weight_decay", one.weight_decay_tensor(), one.weight_decay(), other.weight_decay_tensor(),
            other.weight_decay(), i);
    }
  }
}

Missing missing_when_alone(const Optimizer& optimizer, const Layouts& layouts) {
  Missing missing;
  for (const OptimizerParamGroup& group : optimizer.param_groups()) {
    for (const at::Tensor& param : group.params()) {
      const auto found = optimizer.state().find(param.unsafeGetTensorImpl());
      const bool is_due = !param.grad().defined() && param.requires_grad() && found != optimizer.state().end() &&
                          is_begun(ours(*found->second));
      if (!is_due || layout_of(layouts, param).replicas.absent()) continue;
      missing.emplace(param.unsafeGetTensorImpl(), torch_versions::dtype_of_gradient(param));
    }
  }
  return missing;
}

double steps_taken(const Optimizer& optimizer) {
  double steps = 0;
  for (const auto& [param, state] : optimizer.state()) {
    const at::Tensor& step = ours(*state).step();
    if (step.defined()) steps += step.item<double>();
  }
  return steps;
}

}  // namespace torchdion::optim
