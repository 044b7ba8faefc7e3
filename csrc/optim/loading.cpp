// Taking a state dict: all of it is checked before any of it is.
#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/ops/div.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <variant>

#include "engine/checks.h"
#include "engine/loaded_state.h"
#include "engine/state.h"
#include "linalg/memory.h"
#include "one_sentence.h"
#include "optim/entries.h"
#include "optim/groups.h"
#include "optim/nesting.h"
#include "optim/options.h"
#include "optim/other_names.h"
#include "optim/other_optimizers.h"
#include "optim/parameters.h"
#include "optim/private.h"
#include "optim/rates.h"
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
template <class Is>
IValue entry(const GenericDict& dict, const char* key, const char* kind, const Is& is) {
  const auto found = dict.find(key);
  if (found != dict.end() && is(found->value())) return found->value();
  TORCH_CHECK_VALUE(found == dict.end(), prefix(), "state_dict must have the ", kind, " '", key, "', got one of type ",
                    optim::kind_of(found->value()));
  c10::impl::GenericList keys(c10::AnyType::get());
  for (const auto& item : dict) keys.push_back(item.key());
  TORCH_CHECK_VALUE(false, prefix(), "state_dict must have the ", kind, " '", key, "', got the keys ",
                    optim::entry_text(keys));
}

// The options of a saved group, and the parameters that it names.
struct SavedGroup {
  Entries options;
  std::vector<IValue> params;
  bool is_ours;  // saved by this library
  optim::Saver saver;
  IValue owner;  // of the parts that its states are; none: they have none
  IValue step;   // of all its parameters, where states have none; none: there is none

  // shapes, own: of the group that is to have it, see rename_options_of_others().
  SavedGroup(const IValue& saved, const std::vector<at::IntArrayRef>& shapes, const Options& own,
             const std::string& where) {
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
    saver = optim::rename_options_of_others(options, shapes, own, where);
    if (saver == optim::Saver::dion_package) {
      if (auto counted = options.extract("step")) step = counted.mapped();
    }
    if (saver == optim::Saver::torch_muon) step = 0;  // which does not count
  }
};

// Keys of a group of `count` parameters, which are added to those of the groups before: `known`.
std::vector<Key> keys_of(const SavedGroup& saved, std::size_t count, std::set<Key>& known, const std::string& where) {
  TORCH_CHECK_VALUE(saved.params.size() == count, prefix(),
                    "the loaded group doesn't match the size of the optimizer's: ", saved.params.size(),
                    " parameters, where it has ", count, where);
  std::vector<Key> keys;
  for (const IValue& param : saved.params) {
    const std::optional<Key> key = to_key(param);
    TORCH_CHECK_VALUE(key && known.insert(*key).second, prefix(), "'params' must be distinct numbers or names, got ",
                      optim::entry_text(param), key ? " again" : "", where);
    keys.push_back(*key);
  }
  return keys;
}

std::map<Key, IValue> to_states(const GenericDict& saved) {
  std::map<Key, IValue> states;
  for (const auto& item : saved) {
    const std::optional<Key> key = to_key(item.key());
    TORCH_CHECK_VALUE(key, prefix(), "the keys of 'state' must be numbers or names, got ",
                      optim::entry_text(item.key()));
    states.emplace(*key, item.value());
  }
  return states;
}

// Refuses parts of another rank, which may be as large as this one's.
void check_owner(const IValue& owner, const engine::Part* part, const std::string& where) {
  if (owner.isNone() || (part && owner.isString() && owner.toStringRef() == part->owner())) return;
  TORCH_CHECK_VALUE(false, prefix(), "the states must be whole", part ? " or those of rank " + part->owner() : "",
                    ", got what is owned by rank ", owner.isString() ? owner.toStringRef() : optim::entry_text(owner),
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

void check_is_state(const IValue& saved, const std::string& name) {
  TORCH_CHECK_VALUE(saved.isGenericDict(), prefix(), "the state of ", name, " must be a dict, got ",
                    optim::kind_of(saved));
}

// The saved state of one parameter: checked, copied, in the dtypes that the options ask for.
class SavedState {
 public:
  // options: of the group that is loaded.
  SavedState(GenericDict saved, const SavedGroup& group, const engine::ParameterView& view,
             const algorithms::Options& options)
      : saved_(std::move(saved)),
        has_torchs_buffer_(optim::rename_state_of_others(saved_, group.saver)),
        step_of_group_(group.step),
        view_(view),
        options_(options) {}

  std::unique_ptr<ParamState> load() const {
    engine::check_state_names(*view_.algorithm, names(), view_.tensor.sizes(), view_.name);
    const at::IntArrayRef sizes = view_.sizes();
    // A whole state is told by one like the parameter: a piece that is as large as the whole has whole others too.
    bool whole = true;
    for (const algorithms::State& state : view_.algorithm->states) {
      if (state.shape == algorithms::StateShape::like_parameter) whole = whole && source(state).sizes() == sizes;
    }
    whole = whole || view_.layout.is_local();  // of which there are no pieces
    auto loaded = std::make_unique<ParamState>();
    loaded->tensor("step", step());
    for (const algorithms::State& state : view_.algorithm->states) {
      const at::ScalarType dtype = options_.dtype_or(state.dtype_option, view_.tensor.scalar_type());
      at::Tensor piece = piece_of(state, whole, *loaded);
      if (has_torchs_buffer_ && state.name == "momentum") {  // never in a half, which may not hold it
        const at::ScalarType wide = piece.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
        piece = at::div(piece.to(wide), 1 - options_.number("mu"));
      }
      loaded->tensor(std::string(state.name), engine::stored_as(piece, dtype, view_.tensor.device()).contiguous());
    }
    return loaded;
  }

 private:
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const std::string_view state : algorithms::states()) {
      if (saved_.contains(std::string(state))) names.emplace_back(state);
    }
    return names;
  }

  at::Tensor source(const algorithms::State& state) const {
    const std::string key(state.name);
    const IValue saved = saved_.at(key);
    TORCH_CHECK_VALUE(saved.isTensor(), prefix(), "the state ", key, " of ", view_.name, " must be a tensor, got ",
                      optim::kind_of(saved));
    engine::check_loaded_tensor(saved.toTensor(), key, view_.name);
    return saved.toTensor();
  }

  // This rank's. Its shape is checked before its elements are copied: strides of 0 hold any number of them.
  at::Tensor piece_of(const algorithms::State& state, bool whole, ParamState& loaded) const {
    const at::Tensor saved = source(state);
    const bool is_factor = state.shape == algorithms::StateShape::factor;
    if (view_.part) return owned_part_of(state, saved);
    if (!whole) {
      std::vector<int64_t> sizes = optim::whole_sizes_of(state, saved, view_, options_);
      if (is_factor) loaded.whole_factor(std::string(state.name), std::move(sizes));
      return saved;
    }
    const at::IntArrayRef sizes = view_.sizes();
    engine::check_loaded_sizes(state, saved.sizes(), sizes, options_, view_.name);
    if (is_factor && !view_.layout.is_local()) loaded.whole_factor(std::string(state.name), saved.sizes().vec());
    return engine::piece_of(saved, engine::cuts_of(state, saved.sizes(), view_, options_), view_.layout);
  }

  // Of a saved part, which must be this rank's, or a whole state.
  at::Tensor owned_part_of(const algorithms::State& state, const at::Tensor& saved) const {
    const std::vector<int64_t> whole = engine::whole_state_sizes(state, view_.sizes(), options_);
    if (saved.sizes() == whole) return view_.part->of(saved);
    const std::vector<int64_t> own = view_.part->sizes_of(whole);
    TORCH_CHECK_VALUE(saved.sizes() == own, prefix(), "the ", engine::title_of(state), " of ", view_.name,
                      " must be whole, of shape ", at::IntArrayRef(whole), ", or what this rank owns, of shape ",
                      at::IntArrayRef(own), ", got ", saved.sizes());
    return saved;
  }

  at::Tensor step() const {
    const auto found = saved_.find("step");
    TORCH_CHECK_VALUE(found != saved_.end() || !step_of_group_.isNone(), prefix(), "the state of ", view_.name,
                      " lacks 'step'");
    const IValue saved = found != saved_.end() ? found->value() : step_of_group_;
    const bool is_read = saved.isTensor() && linalg::has_memory(saved.toTensor()) && saved.toTensor().numel() == 1 &&
                         (at::isFloatingType(saved.toTensor().scalar_type()) ||
                          at::isIntegralType(saved.toTensor().scalar_type(), /*includeBool=*/false));
    const IValue number = is_read ? IValue(saved.toTensor().item<double>()) : saved;
    const bool is_number = number.isInt() || number.isDouble();
    const double count = is_number ? number.toScalar().toDouble() : std::nan("");
    const std::string got =
        number.isTensor() ? c10::str("a Tensor of shape ", number.toTensor().sizes()) : optim::entry_text(number);
    engine::check_loaded_step(count, got, view_.name);
    const c10::Device device = options_.flag("capturable") ? view_.tensor.device() : c10::Device(c10::kCPU);
    return at::full({}, count, at::TensorOptions(at::kFloat).device(device));
  }

  GenericDict saved_;
  bool has_torchs_buffer_;
  IValue step_of_group_;
  const engine::ParameterView& view_;
  const algorithms::Options& options_;
};

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
                    optim::kind_of(state_dict));
  const GenericDict saved = state_dict.toGenericDict();
  const IValue saved_state = entry(saved, "state", "dict", [](const IValue& value) { return value.isGenericDict(); });
  const IValue saved_groups = entry(saved, "param_groups", "list", [](const IValue& value) { return value.isList(); });
  const std::size_t count = saved_groups.toListRef().size();
  TORCH_CHECK_VALUE(count == param_groups().size(), prefix(),
                    "the loaded state dict has a different number of parameter groups: ", count,
                    ", where the optimizer has ", param_groups().size());
  const std::map<Key, IValue> saved_states = to_states(saved_state.toGenericDict());

  std::vector<OptimizerParamGroup> groups = param_groups();
  std::vector<engine::ParameterGroup> views;
  int64_t index = 0;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const Options& own = optim::options_of(groups[i], i);  // refuses those of another optimizer
    views.push_back(optim::to_core(groups[i], i, index, optim::values_of(own, optim::group_name(i)), held().layouts));
    index += static_cast<int64_t>(groups[i].params().size());
  }
  std::vector<Entries> unknown;
  std::vector<optim::SaidOptions> said;
  std::decay_t<decltype(state())> states;
  std::set<Key> known;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const std::string where = optim::group_name(i, optim::kOfStateDict);
    auto& options = static_cast<Options&>(groups[i].options());
    std::vector<at::IntArrayRef> shapes;
    for (const engine::ParameterView& view : views[i].parameters) {
      if (!engine::is_passed_over(view.param)) shapes.push_back(view.sizes());
    }
    const SavedGroup group(saved_groups.toListRef()[i], shapes, options, where);
    const std::vector<Key> keys = keys_of(group, groups[i].params().size(), known, where);
    options.lr(optim::lr_of(options)).weight_decay(optim::weight_decay_of(options));
    unknown.push_back(optim::from_entries(group.options, options, where));
    optim::check_other_names(unknown.back(), options, where);
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
      if (found != saved_states.end()) check_is_state(found->second, view.name);
      const bool is_stepped = found != saved_states.end() && is_of_some_step(found->second.toGenericDict(), group);
      optim::check_parameter(view.param, values, view.name);
      if (is_stepped) engine::check_trained(view.param, view.name);
      if (engine::is_passed_over(view.param)) continue;
      optim::check_layout(view.param, view.layout, values, view.name);
      if (!is_stepped) continue;
      states[view.param.unsafeGetTensorImpl()] =
          SavedState(found->second.toGenericDict(), group, view, values.values).load();
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
