#include "optim/parameters.h"

#include <unordered_set>
#include <utility>

#include "engine/parameter.h"
#include "routing/guesses.h"
#include "words.h"

namespace torchdion::optim {

namespace {

const algorithms::Algorithm& own_algorithm(const Options& options) {
  return options.algorithm().empty() ? *algorithms::all().front() : algorithms::algorithm(options.algorithm());
}

}  // namespace

const algorithms::Algorithm& algorithm_of(const at::Tensor& param, const Options& options) {
  return algorithms::algorithm_of(param.dim(), own_algorithm(options).name, options.scalar_algorithm(),
                                  options.batch_dims().value_or(0));
}

void keep_each_once(std::vector<at::Tensor>& params, const std::string& where) {
  std::unordered_set<const void*> seen;
  std::vector<at::Tensor> kept;
  for (std::size_t i = 0; i < params.size(); ++i) {
    if (!params[i].defined() || seen.insert(params[i].unsafeGetTensorImpl()).second) {
      kept.push_back(params[i]);
    } else {
      TORCH_WARN(prefix(), "the optimizer contains a parameter group with duplicate parameters: parameter ", i, where,
                 " is given twice and updated once");
    }
  }
  params = std::move(kept);
}

void check_parameter(const at::Tensor& param, const engine::GroupOptions& options, const std::string& name) {
  TORCH_CHECK_VALUE(param.defined(), prefix(), name, " must be a tensor, got an undefined one");
  TORCH_CHECK_VALUE(param.is_leaf(), prefix(), name, " must be a leaf of the graph");
  engine::check_parameter(param, options.values, name);
}

void warn_of_a_likely_stack(const at::Tensor& param, const Options& options, const std::string& name) {
  if (param.is_nested() || options.batch_dims() || !routing::is_doubtful_kernel(param.sizes().vec())) return;
  if (!algorithm_of(param, options).takes_matrices()) return;
  TORCH_WARN(prefix(), routing::advice_on_stack(param.sizes().vec(), name));
}

const ParamState& ours(const torch::optim::OptimizerParamState& state) {
  const auto* own = dynamic_cast<const ParamState*>(&state);
  TORCH_CHECK_VALUE(own, prefix(), "the state of a parameter must be a torchdion::ParamState");
  return *own;
}

}  // namespace torchdion::optim
