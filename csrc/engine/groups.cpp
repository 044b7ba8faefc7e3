#include "engine/groups.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "engine/state_owners.h"
#include "words.h"

namespace torchdion::engine {

bool differ_in_rates_at_most(const algorithms::Options& one, const algorithms::Options& other) {
  return std::ranges::equal(one.all(), other.all(), [](const auto& a, const auto& b) {
    const bool is_rate = a.first == "lr" || a.first == "weight_decay";
    return a.first == b.first && (is_rate || a.second == b.second);
  });
}

void check_combinations(const algorithms::Options& group, const std::string& where) {
  if (group.has("fan_in_first") && group.has("blocks")) {
    TORCH_CHECK_VALUE(!group.flag("fan_in_first") || group.integer("blocks") == 1, prefix(),
                      "blocks cannot be combined with fan_in_first", where);
  }
  for (const char* choice : {"algorithm", "scalar_algorithm"}) {
    if (!has_owners(group) || !group.has(choice)) continue;
    const algorithms::Algorithm& algorithm = algorithms::algorithm(group.text(choice));
    TORCH_CHECK_VALUE(algorithms::has_option(algorithm, "owners"), prefix(),
                      algorithms::assigned(*algorithms::option("owners"), group.at("owners")),
                      " cannot be combined with the algorithm '", algorithm.name, "', which needs all ranks", where);
  }
  if (!group.has("capturable") || !group.flag("capturable")) return;
  for (const algorithms::Option& option : algorithms::options()) {
    const algorithms::Uncaptured& uncaptured = option.uncaptured;
    if (algorithms::is_none(uncaptured.value) || !group.has(option.name)) continue;
    TORCH_CHECK_VALUE(group.at(option.name) != uncaptured.value, prefix(),
                      algorithms::assigned(option, uncaptured.value), " cannot be combined with ",
                      algorithms::assigned(*algorithms::option("capturable"), true), ": ", uncaptured.why, where);
  }
}

void check_alike(const std::vector<const algorithms::Options*>& groups, const std::string& whose) {
  for (const algorithms::Option& option : algorithms::options()) {
    if (!option.of_optimizer) continue;
    for (std::size_t i = 0; i < groups.size(); ++i) {
      const algorithms::Value &value = groups[i]->at(option.name), &first = groups.front()->at(option.name);
      TORCH_CHECK_VALUE(value == first, prefix(), option.name, " must be the same in all groups, got ",
                        algorithms::shown(option, value), " (parameter group ", i, whose, ") beside ",
                        algorithms::shown(option, first));
    }
  }
}

Group group_of(const algorithms::Algorithm& algorithm, const GroupOptions& options, c10::DeviceType device) {
  Group group;
  group.algorithm = &algorithm;
  group.options = algorithms::options_of(algorithm, options.values);
  const bool capturable = options.values.flag("capturable");
  const auto read = [&](const char* name, const at::Tensor& tensor, at::Tensor& multiplier) {
    if (!tensor.defined()) return group.options.number(name);
    if (!capturable || tensor.device().type() != device) return tensor.item<double>();
    multiplier = tensor;
    return 1.0;
  };
  group.options.set("lr", read("lr", options.lr, group.multipliers.lr) * group.options.number("lr_multiplier"));
  group.options.set("weight_decay", read("weight_decay", options.weight_decay, group.multipliers.weight_decay));
  return group;
}

int64_t steps_taken(const at::Tensor& step) {
  return step.scalar_type() == at::kFloat ? static_cast<int64_t>(*step.const_data_ptr<float>()) : step.item<int64_t>();
}

}  // namespace torchdion::engine
