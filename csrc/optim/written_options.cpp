#include "optim/written_options.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "optim/options.h"
#include "words.h"

namespace torchdion::optim {

namespace {

using algorithms::Option;
using torch::optim::OptimizerParamGroup;

// The last look at the group that had one of these parameters; null: none had.
const SaidOptions* said_of(const std::vector<const void*>& params, std::size_t index,
                           const std::vector<SaidOptions>& said) {
  if (index < said.size() && said[index].params == params) return &said[index];
  const auto had = [&](const SaidOptions& one) {
    return std::find_first_of(params.begin(), params.end(), one.params.begin(), one.params.end()) != params.end();
  };
  const auto found = std::find_if(said.begin(), said.end(), had);
  return found == said.end() ? nullptr : &*found;
}

void warn_once(SaidOptions& said, const engine::Remark& remark) {
  if (said.told.emplace(remark.option, remark.reason).second) TORCH_WARN(prefix(), remark.sentence);
}

}  // namespace

SaidOptions said_by(const OptimizerParamGroup& group, const engine::GroupOptions& options) {
  SaidOptions said{options.values, {}};
  said.params.reserve(group.params().size());
  for (const at::Tensor& param : group.params()) said.params.push_back(param.unsafeGetTensorImpl());
  return said;
}

SaidOptions look_at_added(const OptimizerParamGroup& group, const Options& defaults, std::size_t index) {
  const std::string where = group_name(index);
  SaidOptions said = said_by(group, values_of(options_of(group, index), where));
  algorithms::Options before = values_of(defaults, "").values;
  for (const Option& option : algorithms::options()) {
    const bool says_nothing = said.values.at(option.name) == option.initial || option.name == "betas";
    if (says_nothing) before.set(option.name, said.values.at(option.name));
  }
  for (const engine::Remark& remark : engine::remarks_on(before, said.values, {}, where)) {
    warn_once(said, remark);
  }
  return said;
}

void look_at(ParamGroups& groups, const std::vector<engine::ParameterGroup>& shown,
             std::vector<engine::GroupOptions>& options, std::vector<SaidOptions>& said, bool resizes) {
  std::vector<SaidOptions> now;
  for (std::size_t i = 0; i < options.size(); ++i) {
    algorithms::Options& values = options[i].values;
    now.push_back(said_by(groups[i], options[i]));
    const SaidOptions* last = said_of(now[i].params, i, said);
    if (!last) continue;
    now[i].told = last->told;
    for (const engine::Remark& remark : engine::remarks_on(last->values, values, shown[i].parameters, group_name(i))) {
      const Option& option = *algorithms::option(remark.option);
      const algorithms::Value& before = last->values.at(option.name);
      const bool is_due_later = resizes && remark.reason == engine::Reason::fixed && engine::is_of_ranks(option);
      if (is_due_later) {  // where ranks refuse to resize
        now[i].values.set(option.name, before);
        continue;
      }
      if (remark.reason == engine::Reason::kept) {
        values.set(option.name, before);
        now[i].values.set(option.name, before);
        from_entries({{std::string(option.name), others::to_entry(before)}}, static_cast<Options&>(groups[i].options()),
                     group_name(i));
      }
      warn_once(now[i], remark);
    }
  }
  said = std::move(now);
}

}  // namespace torchdion::optim
