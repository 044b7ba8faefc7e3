#include "optim/groups.h"

#include <memory>
#include <unordered_set>

#include "engine/parameter.h"
#include "optim/options.h"
#include "routing/guesses.h"
#include "words.h"

namespace torchdion::optim {

using torch::optim::OptimizerParamGroup;

namespace {

// Leaves out what a group's parameters hold again, of which a warning tells, as torch does in Python.
void keep_each_once(std::vector<at::Tensor>& params, const std::string& where) {
  std::unordered_set<const void*> seen;
  std::size_t next = 0;
  std::erase_if(params, [&](const at::Tensor& param) {
    const std::size_t i = next++;
    if (!param.defined() || seen.insert(param.unsafeGetTensorImpl()).second) return false;
    TORCH_WARN(prefix(), "the optimizer contains a parameter group with duplicate parameters: parameter ", i, where,
               " is given twice and updated once");
    return true;
  });
}

}  // namespace

std::string group_name(std::size_t index, const std::string& whose) {
  return " (parameter group " + std::to_string(index) + whose + ")";
}

const Options& options_of(const OptimizerParamGroup& group, std::size_t index) {
  const auto* options = dynamic_cast<const Options*>(&group.options());
  TORCH_CHECK_VALUE(options, prefix(), "the options of a group must be torchdion::Options", group_name(index));
  return *options;
}

const Options& first_options(const ParamGroups& groups, const Options& defaults) {
  return groups.empty() || !groups[0].has_options() ? defaults : options_of(groups[0], 0);
}

Options with_algorithm(Options options, const std::string& algorithm) {
  if (options.algorithm().empty()) options.algorithm(algorithm);
  return options;
}

ParamGroups resolved(const ParamGroups& given, const std::string& algorithm) {
  ParamGroups groups;
  for (std::size_t i = 0; i < given.size(); ++i) {
    groups.push_back(given[i]);
    keep_each_once(groups[i].params(), group_name(i));
    if (!given[i].has_options()) continue;
    groups[i].set_options(std::make_unique<Options>(with_algorithm(options_of(given[i], i), algorithm)));
  }
  return groups;
}

std::vector<engine::GroupOptions> checked(const ParamGroups& groups, const Options& defaults,
                                          const std::string& whose) {
  std::vector<engine::GroupOptions> values;
  std::unordered_set<const void*> seen;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const Options& options = groups[i].has_options() ? options_of(groups[i], i) : defaults;
    values.push_back(values_of(options, group_name(i, whose)));
    for (std::size_t k = 0; k < groups[i].params().size(); ++k) {
      const at::Tensor& param = groups[i].params()[k];
      const std::string name = engine::parameter_name(k, i);
      check_parameter(param, values.back(), name);
      TORCH_CHECK_VALUE(seen.insert(param.unsafeGetTensorImpl()).second, prefix(), name, " is given twice");
    }
  }
  std::vector<const algorithms::Options*> all;
  for (const engine::GroupOptions& group : values) all.push_back(&group.values);
  engine::check_alike(all, whose);
  return values;
}

void check_asked_of_optimizer(const ParamGroups& groups, const Options& defaults) {
  const algorithms::Options own = values_of(first_options(groups, defaults), group_name(0)).values;
  const algorithms::Options asked = values_of(defaults, "").values;
  for (const algorithms::Option& option : algorithms::options()) {
    const bool is_asked = option.of_optimizer && asked.at(option.name) != option.initial;
    TORCH_CHECK_VALUE(!is_asked || own.at(option.name) == asked.at(option.name), prefix(), option.name,
                      " holds for the whole optimizer and must be that of the defaults, got ",
                      algorithms::shown(option, own.at(option.name)), group_name(0));
  }
}

void check_shared_rates(const ParamGroups& groups) {
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

void check_parameter(const at::Tensor& param, const engine::GroupOptions& options, const std::string& name) {
  TORCH_CHECK_VALUE(param.defined(), prefix(), name, " must be a tensor, got an undefined one");
  TORCH_CHECK_VALUE(param.is_leaf(), prefix(), name, " must be a leaf of the graph");
  engine::check_parameter(param, options.values, name);
}

void warn_of_a_likely_stack(const at::Tensor& param, const Options& options, const std::string& name) {
  if (param.is_nested() || options.batch_dims()) return;
  if (!algorithms::algorithm_of(param.dim(), options.algorithm(), options.scalar_algorithm(), 0).takes_matrices())
    return;
  const std::string advice = routing::advice_on_stack(param.sizes().vec(), name);
  if (!advice.empty()) TORCH_WARN(prefix(), advice);
}

const ParamState& ours(const torch::optim::OptimizerParamState& state) {
  const auto* own = dynamic_cast<const ParamState*>(&state);
  TORCH_CHECK_VALUE(own, prefix(), "the state of a parameter must be a torchdion::ParamState");
  return *own;
}

}  // namespace torchdion::optim
