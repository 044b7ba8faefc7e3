#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torchdion/routing.h>

#include <array>
#include <cmath>
#include <unordered_set>
#include <utility>

namespace torchdion {

using torch::nn::Module;
using torch::optim::OptimizerParamGroup;

namespace {

constexpr std::array kHeadNames = {"lm_head", "head", "unembed", "unembedding", "embed_out", "output_projection"};

enum class Kind { matrix, convolution, transposed, embedding, vector, head };
constexpr std::array kKinds = {Kind::matrix,    Kind::convolution, Kind::transposed,  // the order of the groups
                               Kind::embedding, Kind::vector,      Kind::head};

using NamedModules = std::vector<std::pair<std::string, const Module*>>;

// The modules of a model in the order of their registration, itself first under the empty name.
NamedModules modules_of(const Module& model) {
  NamedModules modules{{"", &model}};
  for (const auto& item : model.named_modules("", /*include_self=*/false)) {
    modules.emplace_back(item.key(), item.value().get());
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

Weights named_heads(const NamedModules& modules, const std::vector<std::string>& heads) {
  Weights weights;
  for (const std::string& head : heads) {
    const auto found =
        std::find_if(modules.begin(), modules.end(), [&](const auto& item) { return item.first == head; });
    const at::Tensor weight = found == modules.end() ? at::Tensor() : weight_of(*found->second);
    TORCH_CHECK_VALUE(weight.defined(), "torchdion::param_groups: heads must name modules with a weight, got ", head);
    weights.insert(weight.unsafeGetTensorImpl());
  }
  return weights;
}

Weights found_heads(const NamedModules& modules) {
  std::unordered_set<int64_t> vocabularies;
  for (const auto& [name, module] : modules) {
    if (const auto* embedding = module->as<torch::nn::EmbeddingImpl>()) {
      vocabularies.insert(embedding->options.num_embeddings());
    }
  }
  Weights called, wide;
  for (const auto& [name, module] : modules) {
    const auto* linear = module->as<torch::nn::LinearImpl>();
    if (!linear) continue;
    if (is_called_head(name)) called.insert(linear->weight.unsafeGetTensorImpl());
    if (vocabularies.count(linear->options.out_features())) wide.insert(linear->weight.unsafeGetTensorImpl());
  }
  return called.empty() ? wide : called;  // an MLP may be as wide as the vocabulary of bytes is large
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

std::vector<at::Tensor>& params_of(std::vector<std::pair<int64_t, std::vector<at::Tensor>>>& by_width, int64_t width) {
  for (auto& [other, params] : by_width) {
    if (other == width) return params;
  }
  return by_width.emplace_back(width, std::vector<at::Tensor>{}).second;
}

DionOptions options_for(Kind kind, DionOptions options, int64_t width) {
  switch (kind) {
    case Kind::matrix:
      return options;
    case Kind::convolution:
    case Kind::transposed:  // elsewhere a third dimension may count experts
      return options.batch_dims(0).fan_in_first(kind == Kind::transposed);
    case Kind::head:
      options.lr_multiplier(options.lr_multiplier() / std::sqrt(static_cast<double>(width)));
      [[fallthrough]];
    default:
      return options.algorithm(options.scalar_algorithm()).weight_decay(0);
  }
}

}  // namespace

std::vector<OptimizerParamGroup> param_groups(const Module& model, const DionOptions& options,
                                              const std::vector<std::string>& heads) {
  const NamedModules modules = modules_of(model);
  const Weights head = heads.empty() ? found_heads(modules) : named_heads(modules, heads);
  std::vector<OptimizerParamGroup> groups;
  Weights seen;
  for (const Kind kind : kKinds) {
    std::vector<std::pair<int64_t, std::vector<at::Tensor>>> by_width;  // the head's rate follows it
    for (const auto& [name, module] : modules) {
      for (const at::Tensor& param : module->parameters(/*recurse=*/false)) {
        if (!param.requires_grad() || kind_of(*module, param, head) != kind) continue;
        if (!seen.insert(param.unsafeGetTensorImpl()).second) continue;
        params_of(by_width, kind == Kind::head ? param.size(1) : 0).push_back(param);
      }
    }
    for (const auto& [width, params] : by_width) {
      groups.emplace_back(params, std::make_unique<DionOptions>(options_for(kind, options, width)));
    }
  }
  return groups;
}

}  // namespace torchdion
