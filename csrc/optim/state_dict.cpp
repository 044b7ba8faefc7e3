// The state dict that both languages share.
#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <torch/serialize/archive.h>

#include <map>
#include <set>

#include "engine/checks.h"
#include "engine/loaded_state.h"
#include "engine/shapes.h"
#include "linalg/memory.h"
#include "one_sentence.h"
#include "optim/agreement.h"
#include "optim/capturable.h"
#include "optim/nesting.h"
#include "optim/options.h"
#include "optim/parameters.h"
#include "optim/private.h"
#include "optim/whole.h"
#include "words.h"

namespace torchdion {

using c10::IValue;
using optim::Entries;
using torch::optim::OptimizerParamGroup;

namespace {

using Tensors = c10::Dict<std::string, at::Tensor>;
using GenericDict = c10::impl::GenericDict;
using States = std::map<int64_t, GenericDict>;

Tensors to_tensors(const ParamState& state) {
  Tensors tensors;
  for (const auto& [name, tensor] : state.tensors()) {
    if (tensor.defined()) tensors.insert(name, tensor);
  }
  return tensors;
}

GenericDict to_dict(const Entries& entries) {
  GenericDict dict(c10::StringType::get(), c10::AnyType::get());
  for (const auto& [key, value] : entries) dict.insert(key, value);
  return dict;
}

IValue entry(const GenericDict& dict, const char* key, const char* whose) {
  const auto found = dict.find(key);
  TORCH_CHECK_VALUE(found != dict.end(), prefix(), whose, " must have the key '", key, "'");
  return found->value();
}

GenericDict to_dict(const IValue& value, const std::string& what) {
  TORCH_CHECK_VALUE(value.isGenericDict(), prefix(), what, " must be a dict, got ", value.tagKind());
  return value.toGenericDict();
}

std::vector<IValue> to_list(const IValue& value, const std::string& what) {
  TORCH_CHECK_VALUE(value.isList(), prefix(), what, " must be a list, got ", value.tagKind());
  return value.toListRef().vec();
}

Entries to_entries(const IValue& value, const std::string& what) {
  Entries entries;
  for (const auto& item : to_dict(value, what)) {
    if (item.key().isString()) entries.emplace(item.key().toStringRef(), item.value());
  }
  return entries;
}

States to_states(const IValue& value) {
  States states;
  for (const auto& item : to_dict(value, "the state dict's state")) {
    TORCH_CHECK_VALUE(item.key().isInt() || item.key().isString(), prefix(),
                      "the keys of 'state' must be numbers or names, got ", item.key().tagKind());
    if (!item.key().isInt()) continue;
    const std::string what = "the state of parameter " + std::to_string(item.key().toInt());
    states.emplace(item.key().toInt(), to_dict(item.value(), what));
  }
  return states;
}

// The saved state of one parameter: checked, copied, in the dtypes that the options ask for.
class SavedState {
 public:
  SavedState(const GenericDict& saved, const at::Tensor& param, const Layout& layout,
             const engine::GroupOptions& options, std::string name)
      : saved_(saved),
        param_(param),
        layout_(layout),
        options_(options),
        algorithm_(algorithms::algorithm_of(param.dim(), options.values)),
        name_(std::move(name)) {}

  std::unique_ptr<ParamState> load() const {
    engine::check_state_names(algorithm_, names(), param_.sizes(), name_);
    const at::IntArrayRef sizes = engine::whole_sizes(param_, layout_);
    // A whole state is told by one like the parameter: a piece that is as large as the whole has whole others too.
    bool whole = true;
    for (const algorithms::State& state : algorithm_.states) {
      if (state.shape == algorithms::StateShape::like_parameter) whole = whole && source(state).sizes() == sizes;
    }
    whole = whole || layout_.is_local();  // of which there are no pieces
    auto loaded = std::make_unique<ParamState>();
    loaded->tensor("step", step());
    for (const algorithms::State& state : algorithm_.states) {
      const at::ScalarType dtype = options_.values.dtype_or(state.dtype_option, param_.scalar_type());
      loaded->tensor(std::string(state.name),
                     engine::stored_as(piece_of(state, whole, *loaded), dtype, param_.device()).contiguous());
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
    TORCH_CHECK_VALUE(saved.isTensor(), prefix(), "the state ", key, " of ", name_, " must be a tensor, got ",
                      saved.tagKind());
    engine::check_loaded_tensor(saved.toTensor(), key, name_);
    return saved.toTensor();
  }

  // This rank's. Its shape is checked before its elements are copied: strides of 0 hold any number of them.
  at::Tensor piece_of(const algorithms::State& state, bool whole, ParamState& loaded) const {
    const at::Tensor saved = source(state);
    const bool is_factor = state.shape == algorithms::StateShape::factor;
    if (!whole) {
      std::vector<int64_t> sizes = optim::whole_sizes_of(state, saved, param_, layout_, options_, name_);
      if (is_factor) loaded.whole_factor(std::move(sizes));
      return saved;
    }
    const at::IntArrayRef sizes = engine::whole_sizes(param_, layout_);
    engine::check_loaded_sizes(state, saved.sizes(), sizes, options_.values, name_);
    if (is_factor && !layout_.is_local()) loaded.whole_factor(saved.sizes().vec());
    return engine::piece_of(saved, optim::cuts_of(state, saved.sizes(), param_, layout_, options_), layout_);
  }

  at::Tensor step() const {
    const auto found = saved_.find("step");
    TORCH_CHECK_VALUE(found != saved_.end(), prefix(), "the state of ", name_, " lacks 'step'");
    const IValue saved = found->value();
    const bool one = saved.isTensor() && linalg::has_memory(saved.toTensor()) && saved.toTensor().numel() == 1 &&
                     (at::isFloatingType(saved.toTensor().scalar_type()) ||
                      at::isIntegralType(saved.toTensor().scalar_type(), /*includeBool=*/false));
    TORCH_CHECK_VALUE(one || saved.isInt() || saved.isDouble(), prefix(), "the state step of ", name_,
                      " must be a whole number, got ", saved.tagKind());
    const double count = one ? saved.toTensor().item<double>() : saved.toScalar().toDouble();
    engine::check_loaded_step(count, shown(count), name_);
    const c10::Device device = options_.values.flag("capturable") ? param_.device() : c10::Device(c10::kCPU);
    return at::full({}, count, at::TensorOptions(at::kFloat).device(device));
  }

  const GenericDict& saved_;
  const at::Tensor& param_;
  const Layout& layout_;
  const engine::GroupOptions& options_;
  const algorithms::Algorithm& algorithm_;
  std::string name_;
};

}  // namespace

IValue Optimizer::state_dict() const { return state_dict_of(false); }

IValue Optimizer::whole_state_dict() try {
  const Speaking speaking(private_->words(*this));
  private_->agree(*this, {engine::Operation::whole_state_dict, [&] { private_->check(*this); }});
  private_->average_momenta(*this);
  return state_dict_of(true);
} catch (const c10::Error&) {
  rethrow_in_one_sentence();
}

IValue Optimizer::state_dict_of(bool whole) const try {
  const Speaking speaking(private_->words(*this));
  private_->refuse_if_broken();
  private_->refuse_if_decoupled(*this);
  const at::NoGradGuard no_grad;
  c10::Dict<int64_t, Tensors> states;
  c10::impl::GenericList groups(c10::AnyType::get());
  int64_t index = 0;
  for (std::size_t i = 0; i < param_groups().size(); ++i) {
    const Options& options = optim::options_of(param_groups()[i], i);
    const engine::GroupOptions values = optim::values_of(options, optim::group_name(i));
    Entries entries = optim::to_entries(options);
    if (i < private_->unknown.size()) entries.insert(private_->unknown[i].begin(), private_->unknown[i].end());
    c10::impl::GenericList indices(c10::AnyType::get());
    for (const at::Tensor& param : param_groups()[i].params()) {
      const auto found = state().find(param.unsafeGetTensorImpl());
      if (found != state().end()) {
        const auto& own = optim::ours(*found->second);
        const Layout& layout = optim::layout_of(private_->layouts, param);
        states.insert(index, to_tensors(whole ? optim::gather_state(param, own, layout, values) : own));
      }
      indices.push_back(index++);
    }
    entries["params"] = indices;
    groups.push_back(to_dict(entries));
  }
  return to_dict({{"state", states}, {"param_groups", groups}});
} catch (const c10::Error&) {
  rethrow_in_one_sentence();
}

void Optimizer::load_state_dict(const IValue& state_dict) try {
  const Speaking speaking(private_->words(*this));
  optim::check_nesting(state_dict, prefix() + "the state dict");
  const GenericDict saved = to_dict(state_dict, "a state dict");
  const States saved_states = to_states(entry(saved, "state", "a state dict"));
  const std::vector<IValue> saved_groups = to_list(entry(saved, "param_groups", "a state dict"), "param_groups");
  TORCH_CHECK_VALUE(saved_groups.size() == param_groups().size(), prefix(), "the state dict has ", saved_groups.size(),
                    " parameter groups, the optimizer ", param_groups().size());

  std::vector<OptimizerParamGroup> groups = param_groups();
  std::vector<Entries> unknown;
  std::decay_t<decltype(state())> states;
  std::set<int64_t> known;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const std::string where = optim::group_name(i);
    Entries entries = to_entries(saved_groups[i], "a parameter group" + where);
    TORCH_CHECK_VALUE(entries.contains("params"), prefix(), "a parameter group must have the key 'params'", where);
    const std::vector<IValue> indices = to_list(entries.at("params"), "params" + where);
    TORCH_CHECK_VALUE(indices.size() == groups[i].params().size(), prefix(), "the state dict has ", indices.size(),
                      " parameters", where, ", the optimizer ", groups[i].params().size());
    entries.erase("params");
    entries.erase("capturable");      // a matter of this run
    optim::options_of(groups[i], i);  // refuses those of another optimizer
    auto& options = static_cast<Options&>(groups[i].options());
    options.lr(optim::lr_of(options)).weight_decay(optim::weight_decay_of(options));
    unknown.push_back(optim::from_entries(entries, options, where));
    const engine::GroupOptions values = optim::values_of(options, where);
    for (std::size_t k = 0; k < indices.size(); ++k) {
      const at::Tensor& param = groups[i].params()[k];
      const std::string name = optim::parameter_name(k, i);
      TORCH_CHECK_VALUE(indices[k].isInt() && known.insert(indices[k].toInt()).second, prefix(), "params", where,
                        " must be distinct integers, got ", optim::entry_text(indices[k]));
      optim::check_parameter(param, options, name);
      const Layout& layout = optim::layout_of(private_->layouts, param);
      optim::check_layout(param, layout, values, name);
      const auto found = saved_states.find(indices[k].toInt());
      if (found == saved_states.end() || found->second.empty()) continue;
      states[param.unsafeGetTensorImpl()] = SavedState(found->second, param, layout, values, name).load();
    }
  }
  optim::check_groups(groups, static_cast<const Options&>(defaults()));
  optim::check_shared_rates(groups);

  param_groups_ = std::move(groups);
  state_ = std::move(states);
  private_->unknown = std::move(unknown);
  private_->broken.clear();
  for (std::size_t i = 0; i < param_groups().size(); ++i) optim::write_rates(optim::options_of(param_groups()[i], i));
  private_->momenta_are_equal(*this);
  private_->agreed = false;
} catch (const c10::Error&) {
  rethrow_in_one_sentence();
}

void Optimizer::save(torch::serialize::OutputArchive& archive) const {
  const GenericDict saved = state_dict().toGenericDict();
  archive.write("state", saved.at("state"));
  archive.write("param_groups", saved.at("param_groups"));
}

void Optimizer::load(torch::serialize::InputArchive& archive) try {
  const Speaking speaking(private_->words(*this));
  Entries saved;
  for (const char* key : {"state", "param_groups"}) {
    TORCH_CHECK_VALUE(archive.try_read(key, saved[key]), prefix(), "the archive has no '", key,
                      "'; is it that of an optimizer?");
  }
  load_state_dict(to_dict(saved));
} catch (const c10::Error&) {
  rethrow_in_one_sentence();
}

}  // namespace torchdion
