#include "optim/parameters.h"

#include <unordered_set>
#include <utility>

#include "engine/checks.h"
#include "linalg/backend.h"

namespace torchdion::optim {

namespace {

int64_t matrix_dims(const at::Tensor& param, const DionOptions& options) {
  return param.dim() - options.batch_dims().value_or(0);
}

}  // namespace

Algorithm algorithm_of(const at::Tensor& param, const DionOptions& options) {
  if (options.algorithm() == Algorithm::dion && matrix_dims(param, options) < 2) return options.scalar_algorithm();
  return options.algorithm();
}

engine::MatrixForm form_of(const DionOptions& options) {
  return {options.batch_dims().value_or(0), options.blocks(), options.fan_in_first()};
}

void keep_each_once(std::vector<at::Tensor>& params, const std::string& where) {
  std::unordered_set<const void*> seen;
  std::vector<at::Tensor> kept;
  for (std::size_t i = 0; i < params.size(); ++i) {
    if (!params[i].defined() || seen.insert(params[i].unsafeGetTensorImpl()).second) {
      kept.push_back(params[i]);
    } else {
      TORCH_WARN("torchdion::Dion: the optimizer contains a parameter group with duplicate parameters: parameter ", i,
                 where, " is given twice and updated once");
    }
  }
  params = std::move(kept);
}

void check_parameter(const at::Tensor& param, const DionOptions& options, const std::string& name) {
  TORCH_CHECK_VALUE(param.defined(), "torchdion::Dion: ", name, " must be a tensor, got an undefined one");
  TORCH_CHECK_VALUE(param.is_leaf(), "torchdion::Dion: ", name, " must be a leaf of the graph");
  TORCH_CHECK_VALUE(param.layout() == at::kStrided, "torchdion::Dion: ", name, " must be dense, got ", param.layout());
  TORCH_CHECK_VALUE(engine::is_computed(param.scalar_type()), "torchdion::Dion: ", name,
                    " must be real floating-point, got ", param.scalar_type());
  TORCH_CHECK_NOT_IMPLEMENTED(linalg::has_backend(param.device().type()), "torchdion::Dion: ", name, " is on ",
                              param.device(), ", which this build has no kernels for");
  if (algorithm_of(param, options) != Algorithm::dion) return;
  const int64_t rows = param.size(options.batch_dims().value_or(0));
  TORCH_CHECK_VALUE(rows % options.blocks() == 0, "torchdion::Dion: blocks must divide the ", rows, " rows of ", name,
                    ", got ", options.blocks());
}

void warn_of_a_likely_stack(const at::Tensor& param, const DionOptions& options, const std::string& name) {
  if (options.algorithm() != Algorithm::dion || param.dim() != 3 || options.batch_dims()) return;
  TORCH_WARN("torchdion::Dion: ", name, " has shape ", param.sizes(), " and is taken for a convolution, one matrix of ",
             param.size(0), "×", param.size(1) * param.size(2),
             "; set batch_dims(1) in its group if it is a stack of matrices, batch_dims(0) if not");
}

}  // namespace torchdion::optim
