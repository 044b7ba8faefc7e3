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

// Parameters of one kind that share a group.
struct Members {
  int64_t width;  // of a head, whose rate follows it
  optim::Form form;
  std::vector<at::Tensor> params;
};

std::vector<at::Tensor>& params_of(std::vector<Members>& all, int64_t width, const optim::Form& form) {
  for (Members& members : all) {
    if (members.width == width && members.form == form) return members.params;
  }
  return all.emplace_back(Members{width, form, {}}).params;
}

DionOptions options_for(Kind kind, DionOptions options, const Members& members) {
  if (kind == Kind::head) {
    options.lr_multiplier(options.lr_multiplier() / std::sqrt(static_cast<double>(members.width)));
  }
  if (kind == Kind::embedding || kind == Kind::vector || kind == Kind::head) {
    return options.algorithm(options.scalar_algorithm()).weight_decay(0).weight_decay_tensor({});
  }
  return optim::with_form(members.form, std::move(options));
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
    std::vector<Members> members;
    for (const auto& [name, module] : modules) {
      for (const auto& item : module->named_parameters(/*recurse=*/false)) {
        const at::Tensor& param = item.value();
        if (!param.requires_grad() || kind_in_model(*module, name, item.key(), param) != kind) continue;
        if (!seen.insert(param.unsafeGetTensorImpl()).second) continue;
        const int64_t width = kind == Kind::head ? param.size(1) : 0;
        params_of(members, width, optim::form_of(kind, *module, item.key(), param)).push_back(param);
      }
    }
    for (const Members& one : members) {
      groups.emplace_back(one.params, std::make_unique<DionOptions>(options_for(kind, options, one)));
    }
  }
  return groups;
} catch (const c10::Error&) {
  rethrow_in_one_sentence();
}

}  // namespace torchdion
