// Taking a state dict: all of it is checked before any of it is.
#include <ATen/core/Dict.h>
#include <ATen/core/List.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <variant>

#include "engine/loaded_state.h"
#include "linalg/memory.h"
#include "one_sentence.h"
#include "optim/front.h"
#include "optim/groups.h"
#include "optim/options.h"
#include "optim/writable.h"
#include "others/option_names.h"
#include "others/rules.h"
#include "others/saved_groups.h"
#include "words.h"

namespace torchdion {

using c10::IValue;
using optim::Entries;
using torch::optim::OptimizerParamGroup;

namespace {

using GenericDict = c10::impl::GenericDict;

// What a state dict calls a parameter.
using Key = std::variant<int64_t, std::string>;

std::optional<Key> to_key(const IValue& value) {
  if (value.isInt()) return value.toInt();
  if (value.isString()) return value.toStringRef();
  return std::nullopt;
}

// The entry of this name and kind.
IValue entry(const GenericDict& dict, const char* key, const char* kind, bool (IValue::*is)() const) {
  const auto found = dict.find(key);
  if (found != dict.end() && (found->value().*is)()) return found->value();
  TORCH_CHECK_VALUE(found == dict.end(), prefix(), "state_dict must have the ", kind, " '", key, "', got one of type ",
                    others::kind_of(found->value()));
  c10::impl::GenericList keys(c10::AnyType::get());
  for (const auto& item : dict) keys.push_back(item.key());
  TORCH_CHECK_VALUE(false, prefix(), "state_dict must have the ", kind, " '", key, "', got the keys ",
                    others::entry_text(keys));
}

// The options of a saved group, and the parameters that it names.
struct SavedGroup {
  Entries options;
  std::vector<IValue> params;
  bool is_ours;  // saved by this library
  others::Saver saver;
  IValue owner;  // of the parts that its states are; none: they have none
  IValue step;   // of all its parameters, where states have none; none: there is none

  // shapes, own: of the group that is to have it, see others::rename_saved_group().
  SavedGroup(const IValue& saved, const others::Shapes& shapes, const Options& own, const std::string& where) {
    if (saved.isGenericDict()) {
      for (const auto& item : saved.toGenericDict()) {
        if (item.key().isString()) options.emplace(item.key().toStringRef(), item.value());
      }
    }
    const auto found = options.find("params");
    TORCH_CHECK_VALUE(found != options.end() && found->second.isList(), prefix(),
                      "a parameter group must be a dict with the list 'params'", where);
    params = found->second.toListRef().vec();
    options.erase(found);
    if (auto saved_owner = options.extract(optim::kOwnedBy)) owner = saved_owner.mapped();
    for (const algorithms::Option& option : algorithms::options()) {
      if (option.of_run) options.erase(std::string(option.name));
    }
    is_ours = options.contains("scalar_algorithm");
    saver = others::rename_saved_group(options, shapes, optim::to_entries(own), where);
    if (saver == others::Saver::dion_package) {
      if (auto counted = options.extract("step")) step = counted.mapped();
    }
    if (saver == others::Saver::torch_muon) step = 0;  // which does not count
  }
};

// Looks at the entries of a loaded group that are no options of ours. Throws c10::ValueError where one asks for another
// algorithm, and warns where one says something else than the option that it is another name of, which holds.
void check_keys_of_others(const Entries& unknown, const Options& options, const std::string& where) {
  Entries group = optim::to_entries(options);
  group.insert(unknown.begin(), unknown.end());
  others::chosen_algorithm(group, options.algorithm(), options.algorithm(), /*is_named=*/true, where);
  const others::United united = others::unite_names(group, /*written=*/{}, /*refuses=*/false, where);
  for (const auto& [key, sentence] : united.contradictions) TORCH_WARN(prefix(), sentence);
}

// Keys of a group of `count` parameters, which are added to those of the groups before: `known`.
std::vector<Key> keys_of(const SavedGroup& saved, std::size_t count, std::set<Key>& known, const std::string& where) {
  TORCH_CHECK_VALUE(saved.params.size() == count, prefix(),
                    "the loaded group doesn't match the size of the optimizer's: ", saved.params.size(),
                    " parameters, where it has ", count, where);
  std::vector<Key> keys;
  for (const IValue& param : saved.params) {
    const std::optional<Key> key = to_key(param);
    TORCH_CHECK_VALUE(key && known.insert(*key).second, prefix(), "'params' must be distinct numbers or names, got ",
                      others::entry_text(param), key ? " again" : "", where);
    keys.push_back(*key);
  }
  return keys;
}

std::map<Key, IValue> to_states(const GenericDict& saved) {
  std::map<Key, IValue> states;
  for (const auto& item : saved) {
    const std::optional<Key> key = to_key(item.key());
    TORCH_CHECK_VALUE(key, prefix(), "the keys of 'state' must be numbers or names, got ",
                      others::entry_text(item.key()));
    states.emplace(*key, item.value());
  }
  return states;
}

// Refuses parts of another rank, which may be as large as this one's.
void check_owner(const IValue& owner, const engine::Part* part, const std::string& where) {
  if (owner.isNone() || (part && owner.isString() && owner.toStringRef() == part->owner())) return;
  TORCH_CHECK_VALUE(false, prefix(), "the states must be whole", part ? " or those of rank " + part->owner() : "",
                    ", got what is owned by rank ", owner.isString() ? owner.toStringRef() : others::entry_text(owner),
                    "; whole_state_dict() has those of all", where);
}

// True if its parameter has taken a step: before, a group of ours has nothing there but what others keep.
bool is_of_some_step(const GenericDict& saved, const SavedGroup& group) {
  if (!group.is_ours) return !saved.empty();
  const auto& ours = algorithms::states();
  return saved.contains("step") || std::any_of(ours.begin(), ours.end(), [&](std::string_view name) {
           return saved.contains(std::string(name));
         });
}

// The saved state of one parameter, with the names that its tensors have here. options: of the group that is loaded.
engine::SavedState as_saved(GenericDict saved, const SavedGroup& group, const engine::ParameterView& view,
                            const algorithms::Options& options) {
  engine::SavedState state;
  if (others::rename_state(saved, group.saver)) state.divisor = 1 - options.number("mu");
  for (const std::string_view name : algorithms::states()) {
    const auto found = saved.find(std::string(name));
    if (found == saved.end()) continue;
    TORCH_CHECK_VALUE(found->value().isTensor(), prefix(), "the state ", name, " of ", view.name,
                      " must be a tensor, got ", others::kind_of(found->value()));
    state.tensors.push_back({std::string(name), found->value().toTensor()});
  }
  optim::tell_pieces(state.tensors, view, options);
  const auto found = saved.find("step");
  TORCH_CHECK_VALUE(found != saved.end() || !group.step.isNone(), prefix(), "the state of ", view.name,
                    " lacks 'step'");
  const IValue step = found != saved.end() ? found->value() : group.step;
  const bool is_read = step.isTensor() && linalg::has_memory(step.toTensor()) && step.toTensor().numel() == 1 &&
                       (at::isFloatingType(step.toTensor().scalar_type()) ||
                        at::isIntegralType(step.toTensor().scalar_type(), /*includeBool=*/false));
  const IValue number = is_read ? IValue(step.toTensor().item<double>()) : step;
  state.step = number.isInt() || number.isDouble() ? number.toScalar().toDouble() : std::nan("");
  state.shown_step =
      number.isTensor() ? c10::str("a Tensor of shape ", number.toTensor().sizes()) : others::entry_text(number);
  return state;
}

}  // namespace

void Optimizer::load_state_dict(const IValue& state_dict) try {
  Words words = held().words(*this);
  words.language = Language::python;  // whose values a state dict holds
  const Speaking speaking(std::move(words));
  try {  // what is loaded may be of this optimizer
    held().core.flush();
  } catch (const c10::Error&) {  // its states go; where this is refused, the optimizer stays broken
  }
  optim::check_nesting(state_dict, prefix() + "the state dict");
  TORCH_CHECK_VALUE(state_dict.isGenericDict(), prefix(), "state_dict must be a dict, got ",
                    others::kind_of(state_dict));
  const GenericDict saved = state_dict.toGenericDict();
  const IValue saved_state = entry(saved, "state", "dict", &IValue::isGenericDict);
  const IValue saved_groups = entry(saved, "param_groups", "list", &IValue::isList);
  const std::size_t count = saved_groups.toListRef().size();
  TORCH_CHECK_VALUE(count == param_groups().size(), prefix(),
                    "the loaded state dict has a different number of parameter groups: ", count,
                    ", where the optimizer has ", param_groups().size());
  const std::map<Key, IValue> saved_states = to_states(saved_state.toGenericDict());

  std::vector<OptimizerParamGroup> groups = param_groups();
  std::vector<engine::ParameterGroup> views = optim::to_core(groups, held().layouts);
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const Options& own = optim::options_of(groups[i], i);  // refuses those of another optimizer
    views[i].options = optim::values_of(own, optim::group_name(i));
  }
  std::vector<Entries> unknown;
  std::vector<optim::SaidOptions> said;
  std::decay_t<decltype(state())> states;
  std::set<Key> known;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const std::string where = optim::group_name(i, optim::kOfStateDict);
    auto& options = static_cast<Options&>(groups[i].options());
    others::Shapes shapes;
    for (const engine::ParameterView& view : views[i].parameters) {
      if (!engine::is_passed_over(view.param)) shapes.push_back(view.sizes().vec());
    }
    const SavedGroup group(saved_groups.toListRef()[i], shapes, options, where);
    const std::vector<Key> keys = keys_of(group, groups[i].params().size(), known, where);
    options.lr(options.get_lr()).weight_decay(optim::weight_decay_of(options));
    unknown.push_back(optim::from_entries(group.options, options, where));
    check_keys_of_others(unknown.back(), options, where);
    const engine::GroupOptions values = optim::values_of(options, where);
    said.push_back(optim::said_by(groups[i], values));
    views[i].options = values;
    engine::resolve(views);  // no later group changes the owners of this one
    const auto owned = std::find_if(views[i].parameters.begin(), views[i].parameters.end(),
                                    [](const engine::ParameterView& view) { return view.part.has_value(); });
    check_owner(group.owner, owned == views[i].parameters.end() ? nullptr : &*owned->part, where);
    for (std::size_t k = 0; k < keys.size(); ++k) {
      const engine::ParameterView& view = views[i].parameters[k];
      const auto found = saved_states.find(keys[k]);
      const bool is_saved = found != saved_states.end();
      TORCH_CHECK_VALUE(!is_saved || found->second.isGenericDict(), prefix(), "the state of ", view.name,
                        " must be a dict, got ", others::kind_of(found->second));
      const bool is_stepped = is_saved && is_of_some_step(found->second.toGenericDict(), group);
      optim::check_parameter(view.param, values, view.name);
      if (is_stepped) engine::check_trained(view.param, view.name);
      if (engine::is_passed_over(view.param)) continue;
      optim::check_layout(view.param, view.layout, values, view.name);
      if (!is_stepped) continue;
      engine::ParameterView loaded = view;
      loaded.state =
          engine::loaded(as_saved(found->second.toGenericDict(), group, view, values.values), view, values.values);
      auto& state = states[view.param.unsafeGetTensorImpl()];
      state = std::make_unique<ParamState>();
      optim::write_state(loaded, static_cast<ParamState&>(*state));
    }
  }
  optim::checked(groups, static_cast<const Options&>(defaults()), optim::kOfStateDict);
  optim::check_shared_rates(groups);

  param_groups_ = std::move(groups);
  state_ = std::move(states);
  held().unknown = std::move(unknown);
  held().said = std::move(said);
  held().seen = {};
  for (std::size_t i = 0; i < param_groups().size(); ++i) optim::write_rates(optim::options_of(param_groups()[i], i));
  optim::Front front = held().front(*this);
  held().core.loaded(front, optim::first_options(param_groups(), static_cast<const Options&>(defaults())).capturable());
} catch (const c10::Error&) {
  rethrow_in_one_sentence();
}

}  // namespace torchdion
