#include "engine/groups.h"

namespace torchdion::engine {

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
