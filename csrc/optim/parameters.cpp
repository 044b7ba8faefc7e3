#include "optim/parameters.h"

#include <c10/util/accumulate.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "engine/checks.h"
#include "engine/matrix_form.h"
#include "linalg/backend.h"
#include "routing/guesses.h"
#include "words.h"

namespace torchdion::optim {

namespace {

const algorithms::Algorithm& own_algorithm(const Options& options) {
  return options.algorithm().empty() ? *algorithms::all().front() : algorithms::algorithm(options.algorithm());
}

// Steps compute with dense tensors of these dtypes alone.
bool has_numbers(const at::Tensor& param) {
  return param.layout() == at::kStrided && !param.is_nested() && engine::is_computed(param.scalar_type());
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

bool is_left_alone(const at::Tensor& param) { return !param.requires_grad() && !param.grad().defined(); }

bool is_passed_over(const at::Tensor& param) {
  return is_left_alone(param) && !(has_numbers(param) && linalg::has_backend(param.device().type()));
}

bool may_have_states(const at::Tensor& param, const Options& options) {
  if (!has_numbers(param)) return false;
  return !algorithm_of(param, options).takes_matrices() ||
         param.size(options.batch_dims().value_or(0)) % options.blocks() == 0;
}

void check_trained(const at::Tensor& param, const std::string& name) {
  TORCH_CHECK_VALUE(param.layout() == at::kStrided && !param.is_nested(), prefix(), name, " must be dense, got ",
                    param.is_nested() ? "nested" : c10::str(param.layout()));
  TORCH_CHECK_VALUE(engine::is_computed(param.scalar_type()), prefix(), name, " must be real floating-point, got ",
                    param.scalar_type());
  TORCH_CHECK_NOT_IMPLEMENTED(linalg::has_backend(param.device().type()), prefix(), name, " is on ", param.device(),
                              ", which this build has no kernels for");
}

void check_parameter(const at::Tensor& param, const Options& options, const std::string& name) {
  TORCH_CHECK_VALUE(param.defined(), prefix(), name, " must be a tensor, got an undefined one");
  TORCH_CHECK_VALUE(param.is_leaf(), prefix(), name, " must be a leaf of the graph");
  if (is_left_alone(param)) return;
  check_trained(param, name);
  const int64_t batch_dims = options.batch_dims().value_or(0);
  TORCH_CHECK_VALUE(batch_dims <= param.dim() || !own_algorithm(options).takes_matrices(), prefix(),
                    "batch_dims must be at most the number of dimensions of ", name, " of shape ", param.sizes(),
                    ", got ", batch_dims);
  if (!algorithm_of(param, options).takes_matrices()) return;
  engine::check_blocks(param.size(options.batch_dims().value_or(0)), options.blocks(), name);
}

void warn_of_a_likely_stack(const at::Tensor& param, const Options& options, const std::string& name) {
  if (param.is_nested() || options.batch_dims() || !routing::is_doubtful_kernel(param.sizes().vec())) return;
  if (!algorithm_of(param, options).takes_matrices()) return;
  TORCH_WARN(prefix(), name, " has shape ", param.sizes(), " and is taken for a convolution, one matrix of ",
             param.size(0), "×", c10::multiply_integers(param.sizes().slice(1)), "; set batch_dims(", param.dim() - 2,
             ") in its group if it is a stack of matrices, batch_dims(0) if not");
}

const ParamState& ours(const torch::optim::OptimizerParamState& state) {
  const auto* own = dynamic_cast<const ParamState*>(&state);
  TORCH_CHECK_VALUE(own, prefix(), "the state of a parameter must be a torchdion::ParamState");
  return *own;
}

bool is_begun(const ParamState& state) {
  const auto has = [&](std::string_view name) { return state.tensor(std::string(name)).defined(); };
  const auto& ours = algorithms::states();
  return has("step") || std::any_of(ours.begin(), ours.end(), has);
}

std::vector<std::string> names_of(const ParamState& state) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : state.tensors()) {
    if (name != "step" && tensor.defined()) names.push_back(name);
  }
  return names;
}

}  // namespace torchdion::optim
