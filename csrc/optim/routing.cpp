#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torchdion/routing.h>

#include <array>
#include <cmath>
#include <map>
#include <unordered_set>

namespace torchdion {

using torch::nn::Module;
using torch::optim::OptimizerParamGroup;

namespace {

constexpr std::array kHeadNames = {"lm_head", "head", "unembed", "unembedding", "embed_out", "output_projection"};

enum class Kind { matrix, convolution, transposed, embedding, vector, head };  // in the order of the groups

// The modules of a model by name, itself included under the empty one.
std::map<std::string, const Module*> modules_of(const Module& model) {
  std::map<std::string, const Module*> modules{{"", &model}};
  for (const auto& item : model.named_modules("", /*include_self=*/false)) {
    modules.emplace(item.key(), item.value().get());
  }
  return modules;
}

at::Tensor weight_of(const Module& module) {
  const auto parameters = module.named_parameters(/*recurse=*/false);
  const at::Tensor* weight = parameters.find("weight");
  return weight ? *weight : at::Tensor();
}

bool is_called_head(const std::string& name) {
  const std::string last = name.substr(name.rfind('.') + 1);
  return std::find(kHeadNames.begin(), kHeadNames.end(), last) != kHeadNames.end();
}

using Weights = std::unordered_set<const void*>;

Weights head_weights(const std::map<std::string, const Module*>& modules, const std::vector<std::string>& heads) {
  Weights weights;
  for (const std::string& name : heads) {
    const auto found = modules.find(name);
    const at::Tensor weight = found == modules.end() ? at::Tensor() : weight_of(*found->second);
    TORCH_CHECK_VALUE(weight.defined(), "torchdion::param_groups: heads must name modules with a weight, got ", name);
    weights.insert(weight.unsafeGetTensorImpl());
  }
  if (!heads.empty()) return weights;
  std::unordered_set<int64_t> vocabularies;
  for (const auto& [name, module] : modules) {
    if (const auto* embedding = module->as<torch::nn::EmbeddingImpl>()) {
      vocabularies.insert(embedding->options.num_embeddings());
    }
  }
  for (const auto& [name, module] : modules) {
    const auto* linear = module->as<torch::nn::LinearImpl>();
    if (linear && (vocabularies.count(linear->options.out_features()) || is_called_head(name))) {
      weights.insert(linear->weight.unsafeGetTensorImpl());
    }
  }
  return weights;
}

Kind kind_of(const Module& owner, const at::Tensor& param, const Weights& heads) {
  using namespace torch::nn;
  if (heads.count(param.unsafeGetTensorImpl())) return Kind::head;
  if (owner.as<EmbeddingImpl>() || owner.as<EmbeddingBagImpl>()) return Kind::embedding;
  if (param.dim() < 2) return Kind::vector;
  if (owner.as<ConvTranspose1dImpl>() || owner.as<ConvTranspose2dImpl>() || owner.as<ConvTranspose3dImpl>()) {
    return Kind::transposed;
  }
  if (owner.as<Conv1dImpl>() || owner.as<Conv2dImpl>() || owner.as<Conv3dImpl>()) return Kind::convolution;
  return Kind::matrix;
}

DionOptions options_for(Kind kind, DionOptions options, int64_t width) {
  switch (kind) {
    case Kind::matrix:
      return options;
    case Kind::convolution:
    case Kind::transposed:  // elsewhere a third dimension may count experts
      return options.batch_dims(0).fan_in_first(kind == Kind::transposed);
    case Kind::head:
      options.lr_scale(options.lr_scale() / std::sqrt(static_cast<double>(width)));
      [[fallthrough]];
    default:
      return options.algorithm(options.scalar_algorithm()).weight_decay(0);
  }
}

}  // namespace

std::vector<OptimizerParamGroup> param_groups(const Module& model, const DionOptions& options,
                                              const std::vector<std::string>& heads) {
  const std::map<std::string, const Module*> modules = modules_of(model);
  const Weights head = head_weights(modules, heads);
  std::map<std::pair<Kind, int64_t>, std::vector<at::Tensor>> sorted;  // by the width too: the head's rate follows it
  Weights seen;
  for (const auto& [name, module] : modules) {
    for (const at::Tensor& param : module->parameters(/*recurse=*/false)) {
      if (!param.requires_grad() || !seen.insert(param.unsafeGetTensorImpl()).second) continue;
      const Kind kind = kind_of(*module, param, head);
      sorted[{kind, kind == Kind::head ? param.size(1) : 0}].push_back(param);
    }
  }
  std::vector<OptimizerParamGroup> groups;
  for (const auto& [key, params] : sorted) {
    groups.emplace_back(params, std::make_unique<DionOptions>(options_for(key.first, options, key.second)));
  }
  return groups;
}

}  // namespace torchdion
