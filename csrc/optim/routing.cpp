#include <torchdion/routing.h>

#include <c10/util/StringUtil.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <regex>

#include "one_sentence.h"
#include "optim/heads.h"
#include "optim/kinds.h"
#include "optim/options.h"

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

// The inputs of a head, whose rate follows them.
int64_t width_of(const optim::Form& form, const at::Tensor& param) {
  const int64_t first = form.batch_dims.value_or(0);
  const int64_t rows = param.size(first);
  if (form.fan_in_first) return rows;
  return c10::multiply_integers(param.sizes().slice(first + 1));
}

// A parameter's name, in which layers that are alike are one.
std::string name_of_layers(const std::string& module_name, const std::string& key) {
  static const std::regex number("(^|\\.)\\d+(?=\\.)");
  return std::regex_replace((module_name.empty() ? "" : module_name + ".") + key, number, "$1*");
}

// What a form was guessed of, in one sentence.
class Guesses {
 public:
  void add(const std::string& name, int64_t batch_dims) {
    std::vector<std::string>& names = names_[batch_dims];
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }

  void warn() const {
    std::string taken;
    for (std::size_t batch_dims : {0, 1}) {
      if (names_[batch_dims].empty()) continue;
      if (!taken.empty()) taken += " and ";
      taken += c10::Join(", ", names_[batch_dims]);
      taken += batch_dims == 0 ? " for one matrix each (batch_dims 0)" : " for stacks of matrices (batch_dims 1)";
    }
    if (taken.empty()) return;
    TORCH_WARN("torchdion::param_groups: by their shapes takes ", taken,
               "; set batch_dims in the group of what is something else");
  }

 private:
  std::array<std::vector<std::string>, 2> names_;  // by batch_dims
};

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

Options options_for(Kind kind, Options options, const Members& members) {
  if (kind == Kind::head) {
    options.lr_multiplier(options.lr_multiplier() / std::sqrt(static_cast<double>(members.width)));
  }
  if (kind == Kind::embedding || kind == Kind::vector || kind == Kind::head) {
    optim::keep_options_of(options.scalar_algorithm(), options);
    return options.weight_decay(0).weight_decay_tensor({});
  }
  return optim::with_form(members.form, std::move(options));
}

}  // namespace

std::vector<OptimizerParamGroup> param_groups(const Module& model, const Options& options,
                                              const std::vector<std::string>& heads) try {
  const NamedModules modules = modules_of(model);
  const optim::Weights head = optim::head_weights(modules, heads);
  const optim::Weights embeddings = embeddings_of(modules);
  const auto kind_in_model = [&](const Module& owner, const std::string& name, const std::string& key,
                                 const at::Tensor& param) {
    if (head.contains(param.unsafeGetTensorImpl())) return Kind::head;
    if (embeddings.contains(param.unsafeGetTensorImpl())) return Kind::embedding;
    const Kind kind = optim::kind_of(owner, name, key, param);
    return kind == Kind::guessed && options.batch_dims() ? Kind::matrix : kind;  // in the form that the options say
  };
  std::vector<OptimizerParamGroup> groups;
  optim::Weights seen;
  Guesses guesses;
  for (const Kind kind : optim::kKinds) {
    std::vector<Members> members;
    for (const auto& [name, module] : modules) {
      for (const auto& item : module->named_parameters(/*recurse=*/false)) {
        const at::Tensor& param = item.value();
        if (!param.requires_grad() || kind_in_model(*module, name, item.key(), param) != kind) continue;
        if (!seen.insert(param.unsafeGetTensorImpl()).second) continue;
        const Kind own = kind == Kind::head ? optim::kind_of(*module, name, item.key(), param) : kind;
        const optim::Form form = optim::form_of(own, *module, item.key(), param);
        if (kind == Kind::guessed) guesses.add(name_of_layers(name, item.key()), *form.batch_dims);
        params_of(members, kind == Kind::head ? width_of(form, param) : 0, kind == Kind::head ? optim::Form{} : form)
            .push_back(param);
      }
    }
    for (const Members& one : members) {
      groups.emplace_back(one.params, std::make_unique<Options>(options_for(kind, options, one)));
    }
  }
  guesses.warn();
  return groups;
} catch (const c10::Error&) {
  rethrow_in_one_sentence();
}

}  // namespace torchdion
