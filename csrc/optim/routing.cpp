#include <torchdion/routing.h>

#include <cmath>

#include "one_sentence.h"
#include "optim/heads.h"
#include "optim/kinds.h"

namespace torchdion {

using optim::Kind;
using optim::NamedModules;
using torch::nn::Module;
using torch::optim::OptimizerParamGroup;

namespace {

NamedModules modules_of(const Module& model) {
  NamedModules modules{{"", &model}};
  for (const auto& item : model.named_modules("", /*include_self=*/false)) {
    modules.emplace_back(item.key(), item.value().get());
  }
  return modules;
}

// An embedding is one whoever shares it.
optim::Weights embeddings_of(const NamedModules& modules) {
  optim::Weights weights;
  for (const auto& [name, module] : modules) {
    for (const auto& item : module->named_parameters(/*recurse=*/false)) {
      if (optim::kind_of(*module, name, item.key(), item.value()) == Kind::embedding) {
        weights.insert(item.value().unsafeGetTensorImpl());
      }
    }
  }
  return weights;
}

std::vector<at::Tensor>& params_of(std::vector<std::pair<int64_t, std::vector<at::Tensor>>>& by_width, int64_t width) {
  for (auto& [other, params] : by_width) {
    if (other == width) return params;
  }
  return by_width.emplace_back(width, std::vector<at::Tensor>{}).second;
}

DionOptions options_for(Kind kind, DionOptions options, int64_t width) {
  if (kind == Kind::head) options.lr_multiplier(options.lr_multiplier() / std::sqrt(static_cast<double>(width)));
  if (kind == Kind::embedding || kind == Kind::vector || kind == Kind::head) {
    return options.algorithm(options.scalar_algorithm()).weight_decay(0);
  }
  return optim::with_form(kind, std::move(options));
}

}  // namespace

std::vector<OptimizerParamGroup> param_groups(const Module& model, const DionOptions& options,
                                              const std::vector<std::string>& heads) try {
  const NamedModules modules = modules_of(model);
  const optim::Weights head = optim::head_weights(modules, heads);
  const optim::Weights embeddings = embeddings_of(modules);
  const auto kind_in_model = [&](const Module& owner, const std::string& name, const std::string& key,
                                 const at::Tensor& param) {
    if (head.contains(param.unsafeGetTensorImpl())) return Kind::head;
    if (embeddings.contains(param.unsafeGetTensorImpl())) return Kind::embedding;
    return optim::kind_of(owner, name, key, param);
  };
  std::vector<OptimizerParamGroup> groups;
  optim::Weights seen;
  for (const Kind kind : optim::kKinds) {
    std::vector<std::pair<int64_t, std::vector<at::Tensor>>> by_width;  // the head's rate follows it
    for (const auto& [name, module] : modules) {
      for (const auto& item : module->named_parameters(/*recurse=*/false)) {
        const at::Tensor& param = item.value();
        if (!param.requires_grad() || kind_in_model(*module, name, item.key(), param) != kind) continue;
        if (!seen.insert(param.unsafeGetTensorImpl()).second) continue;
        params_of(by_width, kind == Kind::head ? param.size(1) : 0).push_back(param);
      }
    }
    for (const auto& [width, params] : by_width) {
      groups.emplace_back(params, std::make_unique<DionOptions>(options_for(kind, options, width)));
    }
  }
  return groups;
} catch (const c10::Error&) {
  rethrow_in_one_sentence();
}

}  // namespace torchdion
