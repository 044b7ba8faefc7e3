#include "optim/rates.h"

#include <ATen/core/grad_mode.h>

#include "optim/groups.h"
#include "optim/options.h"
#include "words.h"

namespace torchdion::optim {

using torch::optim::OptimizerParamGroup;

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

}  // namespace torchdion::optim
