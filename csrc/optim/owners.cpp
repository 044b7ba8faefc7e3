#include "optim/owners.h"

#include "optim/groups.h"
#include "optim/options.h"
#include "optim/parameters.h"
#include "words.h"

namespace torchdion::optim {

Parts parts_of(const std::vector<torch::optim::OptimizerParamGroup>& groups, const Layouts& layouts) {
  std::vector<engine::GroupOptions> options;
  for (std::size_t i = 0; i < groups.size(); ++i) options.push_back(values_of(options_of(groups[i], i), group_name(i)));
  std::vector<engine::Owned> owned;
  std::vector<const void*> keys;
  std::string alone;  // a parameter without other ranks
  for (std::size_t i = 0; i < groups.size(); ++i) {
    if (!engine::has_owners(options[i].values)) continue;
    for (std::size_t k = 0; k < groups[i].params().size(); ++k) {
      const at::Tensor& param = groups[i].params()[k];
      if (!may_have_states(param, options_of(groups[i], i))) continue;
      const Axis& axis = engine::axis_of_owners(layout_of(layouts, param), parameter_name(k, i));
      if (axis.absent()) {
        alone = parameter_name(k, i);
        continue;
      }
      owned.push_back({i, param.sizes().vec(), &options[i].values, axis});
      keys.push_back(param.unsafeGetTensorImpl());
    }
  }
  TORCH_CHECK_VALUE(owned.empty() || alone.empty(), prefix(), "the layout of ", alone,
                    " must have replicas or copies under ",
                    algorithms::assigned(*algorithms::option("owners"), std::string_view("shard")),
                    " as those of other parameters have");
  std::vector<comm::Shares> shares = engine::shares_of(owned);
  Parts parts;
  for (std::size_t i = 0; i < owned.size(); ++i) {
    parts.emplace(keys[i], Part{owned[i].axis, std::move(shares[i]), owned[i].sizes});
  }
  return parts;
}

const Part* part_of(const Parts& parts, const at::Tensor& param) {
  const auto found = parts.find(param.unsafeGetTensorImpl());
  return found == parts.end() ? nullptr : &found->second;
}

const Part* part_of(const Parts& parts, const std::vector<at::Tensor>& params) {
  for (const at::Tensor& param : params) {
    if (const Part* part = part_of(parts, param)) return part;
  }
  return nullptr;
}

}  // namespace torchdion::optim
