#include "optim/groups.h"

#include <memory>
#include <unordered_set>

#include "engine/group_options.h"
#include "engine/parameter.h"
#include "optim/options.h"
#include "optim/parameters.h"
#include "words.h"

namespace torchdion::optim {

using torch::optim::OptimizerParamGroup;

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

}  // namespace torchdion::optim
