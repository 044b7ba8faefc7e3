#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torchdion/routing.h>

#include "one_sentence.h"
#include "optim/options.h"
#include "routing/route.h"
#include "words.h"

namespace torchdion {

using routing::Kind;
using routing::Layer;
using torch::optim::OptimizerParamGroup;

namespace {

using namespace torch::nn;

// The name of a module's class without its namespaces, as its holder is called.
std::string class_of(const Module& module) {
  const std::string name = module.name().substr(0, module.name().find('<'));
  const std::string own = name.substr(name.rfind(':') + 1);
  return own.ends_with("Impl") ? own.substr(0, own.size() - 4) : own;
}

template <class... Impls>
bool is_one_of(const Module& module) {
  return (module.as<Impls>() || ...);
}

routing::Module described(const std::string& name, const Module& module) {
  routing::Module facts{.name = name, .class_name = class_of(module)};
  if (const auto* linear = module.as<LinearImpl>()) {
    facts.layer = Layer::linear;
    facts.width = linear->options.out_features();
  } else if (const auto* embedding = module.as<EmbeddingImpl>()) {
    facts.layer = Layer::embedding;
    facts.width = embedding->options.num_embeddings();
  } else if (module.as<EmbeddingBagImpl>()) {
    facts.layer = Layer::embedding_bag;
  } else if (is_one_of<Conv1dImpl, Conv2dImpl, Conv3dImpl, BilinearImpl>(module)) {
    facts.layer = Layer::convolution;
  } else if (is_one_of<ConvTranspose1dImpl, ConvTranspose2dImpl, ConvTranspose3dImpl>(module)) {
    facts.layer = Layer::transposed_convolution;
  } else if (module.as<MultiheadAttentionImpl>()) {
    facts.layer = Layer::attention;
  }
  return facts;
}

// A model, and the tensors of its parameters in the order of the description.
struct Described {
  routing::Model model;
  std::vector<at::Tensor> params;

  explicit Described(const Module& whole) {
    add("", whole);
    for (const auto& item : whole.named_modules("", /*include_self=*/false)) add(item.key(), *item.value());
  }

 private:
  void add(const std::string& name, const Module& module) {
    routing::Module facts = described(name, module);
    for (const auto& item : module.named_parameters(/*recurse=*/false)) {
      const at::Tensor& param = item.value();
      const auto id = reinterpret_cast<std::intptr_t>(param.unsafeGetTensorImpl());
      if (item.key() == "gate_up_proj") facts.gate_up_proj = param.sizes().vec();
      if (item.key() == "down_proj") facts.down_proj = param.sizes().vec();
      model.parameters.push_back({model.modules.size(), item.key(), (name.empty() ? "" : name + ".") + item.key(), id,
                                  param.sizes().vec(), param.requires_grad()});
      params.push_back(param);
    }
    model.modules.push_back(std::move(facts));
  }
};

Options options_for(const routing::Group& group, Options options) {
  const routing::Form& form = group.form;
  if (group.kind == Kind::embedding || group.kind == Kind::vector || group.kind == Kind::unknown ||
      group.kind == Kind::head) {
    optim::keep_options_of(options.scalar_algorithm(), options);
    options.weight_decay(0).weight_decay_tensor({});
  }
  options.lr_multiplier(options.lr_multiplier() * form.lr_multiplier);
  options.batch_dims(form.batch_dims);  // not what was said of others
  if (form.blocks) options.blocks(*form.blocks);
  if (form.fan_in_first) options.fan_in_first(*form.fan_in_first);
  if (form.skip_zero_gradients) options.skip_zero_gradients(*form.skip_zero_gradients);
  return options;
}

}  // namespace

std::vector<OptimizerParamGroup> param_groups(const Module& model, const Options& options,
                                              const std::vector<std::string>& heads, bool strict) try {
  const Speaking speaking({"torchdion::param_groups"});
  const Described described(model);
  const auto named = heads.empty() ? std::nullopt : std::optional(heads);
  const routing::Routing found =
      routing::route(described.model, {.heads = named, .is_strict = strict, .batch_dims = options.batch_dims()});
  for (const std::string& warning : found.warnings) TORCH_WARN(warning);
  std::vector<OptimizerParamGroup> groups;
  for (const routing::Group& group : found.groups) {
    std::vector<at::Tensor> params;
    for (const std::size_t index : group.parameters) params.push_back(described.params[index]);
    groups.emplace_back(std::move(params), std::make_unique<Options>(options_for(group, options)));
  }
  return groups;
} catch (const c10::Error&) {
  rethrow_in_one_sentence();
}

}  // namespace torchdion
