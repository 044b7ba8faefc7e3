// The state dict that both languages share.
#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/where.h>
#include <torch/serialize/archive.h>

#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "engine/checks.h"
#include "engine/shapes.h"
#include "linalg/memory.h"
#include "one_sentence.h"
#include "optim/agreement.h"
#include "optim/capturable.h"
#include "optim/nesting.h"
#include "optim/parameters.h"
#include "optim/private.h"
#include "optim/whole.h"

namespace torchdion {

using c10::IValue;
using optim::Entries;
using torch::optim::OptimizerParamGroup;

namespace {

// The largest finite number of a dtype that steps compute with; 0 of another.
double largest_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return std::numeric_limits<double>::max();
    case at::kFloat:
      return std::numeric_limits<float>::max();
    case at::kBFloat16:
      return std::numeric_limits<at::BFloat16>::max();
    case at::kHalf:
      return std::numeric_limits<at::Half>::max();
    default:
      return 0;
  }
}

using Tensors = c10::Dict<std::string, at::Tensor>;
using GenericDict = c10::impl::GenericDict;
using States = std::map<int64_t, GenericDict>;

Tensors to_tensors(const DionParamState& state) {
  Tensors tensors;
  const auto insert = [&](const char* name, const at::Tensor& tensor) {
    if (tensor.defined()) tensors.insert(name, tensor);
  };
  insert("step", state.step());
  insert("momentum", state.momentum());
  insert("Q", state.Q());
  insert("variance", state.variance());
  return tensors;
}

GenericDict to_dict(const Entries& entries) {
  GenericDict dict(c10::StringType::get(), c10::AnyType::get());
  for (const auto& [key, value] : entries) dict.insert(key, value);
  return dict;
}

IValue entry(const GenericDict& dict, const char* key, const char* whose) {
  const auto found = dict.find(key);
  TORCH_CHECK_VALUE(found != dict.end(), "torchdion::Dion: ", whose, " must have the key '", key, "'");
  return found->value();
}

GenericDict to_dict(const IValue& value, const std::string& what) {
  TORCH_CHECK_VALUE(value.isGenericDict(), "torchdion::Dion: ", what, " must be a dict, got ", value.tagKind());
  return value.toGenericDict();
}

std::vector<IValue> to_list(const IValue& value, const std::string& what) {
  TORCH_CHECK_VALUE(value.isList(), "torchdion::Dion: ", what, " must be a list, got ", value.tagKind());
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
    TORCH_CHECK_VALUE(item.key().isInt() || item.key().isString(),
                      "torchdion::Dion: the keys of 'state' must be numbers or names, got ", item.key().tagKind());
    if (!item.key().isInt()) continue;
    const std::string what = "the state of parameter " + std::to_string(item.key().toInt());
    states.emplace(item.key().toInt(), to_dict(item.value(), what));
  }
  return states;
}

// The saved state of one parameter: checked, copied, in the dtypes that the options ask for.
class SavedState {
 public:
  SavedState(const GenericDict& saved, const at::Tensor& param, const Layout& layout, const DionOptions& options,
             std::string name)
      : saved_(saved), param_(param), layout_(layout), options_(options), name_(std::move(name)) {}

  std::unique_ptr<DionParamState> load() const {
    auto state = std::make_unique<DionParamState>();
    // A whole state is told by its momentum: a piece of a parameter that is as large as the whole has a whole Q too.
    const bool whole = source("momentum").sizes() == engine::whole_sizes(param_, layout_);
    state->momentum(copy(source_like_param("momentum", whole), options_.momentum_dtype())).step(step());
    const Algorithm algorithm = optim::algorithm_of(param_, options_);
    if (algorithm == Algorithm::dion) load_Q(*state, whole);
    if (algorithm == Algorithm::adamw) {
      state->variance(copy(source_like_param("variance", whole), options_.variance_dtype()));
    }
    return state;
  }

 private:
  IValue value(const char* key) const {
    const auto found = saved_.find(key);
    TORCH_CHECK_VALUE(found != saved_.end(), "torchdion::Dion: the state of ", name_, " lacks '", key,
                      "'; is it the checkpoint of another optimizer or with other options?");
    return found->value();
  }

  void load_Q(DionParamState& state, bool whole) const {
    at::Tensor Q = source("Q");
    if (whole) {
      engine::check_Q_sizes(param_, engine::whole_sizes(param_, layout_), Q.sizes(), optim::form_of(options_));
      if (!layout_.is_local()) state.whole_Q(Q.sizes().vec());
      Q = optim::cut_Q(Q, param_, layout_, options_);
    }
    if (!whole) state.whole_Q(optim::whole_Q(param_, Q, layout_, options_, name_));
    state.Q(copy(Q, options_.Q_dtype()));
    engine::check_Q_memory(param_, state.Q());
  }

  at::Tensor source(const char* key) const {
    const IValue saved = value(key);
    const bool is_tensor = saved.isTensor() && saved.toTensor().defined();
    const std::string got = is_tensor ? saved.toTensor().toString() : saved.tagKind();
    TORCH_CHECK_VALUE(
        is_tensor && linalg::has_memory(saved.toTensor()) && at::isFloatingType(saved.toTensor().scalar_type()),
        "torchdion::Dion: the state ", key, " of ", name_,
        " must be a dense floating-point tensor with memory of its own, got ", got);
    return saved.toTensor();
  }

  // This rank's piece. Its shape is checked before its elements are copied: strides of 0 hold any number of them.
  at::Tensor source_like_param(const char* key, bool whole) const {
    at::Tensor saved = source(key);
    const at::IntArrayRef sizes = whole ? engine::whole_sizes(param_, layout_) : param_.sizes();
    TORCH_CHECK_VALUE(saved.sizes() == sizes, "torchdion::Dion: the state ", key, " of ", name_, " of shape ", sizes,
                      " must have that shape, got ", saved.sizes());
    return whole ? optim::cut(saved, param_, layout_, options_) : saved;
  }

  at::Tensor copy(const at::Tensor& source, const std::optional<at::ScalarType>& dtype) const {
    const at::Tensor copy = at::empty(source.sizes(), param_.options().dtype(dtype.value_or(param_.scalar_type())));
    const double largest = largest_of(copy.scalar_type());
    if (largest >= largest_of(source.scalar_type())) return copy.copy_(source);
    // A finite number beyond the range becomes the largest, as steps store it.
    return copy.copy_(at::where(source.isinf(), source, source.clamp(-largest, largest)));
  }

  at::Tensor step() const {
    const IValue saved = value("step");
    const bool one = saved.isTensor() && linalg::has_memory(saved.toTensor()) && saved.toTensor().numel() == 1 &&
                     (at::isFloatingType(saved.toTensor().scalar_type()) ||
                      at::isIntegralType(saved.toTensor().scalar_type(), /*includeBool=*/false));
    TORCH_CHECK_VALUE(one || saved.isInt() || saved.isDouble(), "torchdion::Dion: the step of ", name_,
                      " must be a number, got ", saved.tagKind());
    const double count = one ? saved.toTensor().item<double>() : saved.toScalar().toDouble();
    // FP32 counts no further in ones: a count stays there.
    TORCH_CHECK_VALUE(count >= 0 && count <= 0x1p24 && count == std::floor(count), "torchdion::Dion: the step of ",
                      name_, " must be a whole number from 0 to 16777216, got ", count);
    return at::full({}, count, at::TensorOptions(at::kFloat).device(optim::device_of_step(param_, options_)));
  }

  const GenericDict& saved_;
  const at::Tensor& param_;
  const Layout& layout_;
  const DionOptions& options_;
  std::string name_;
};

}  // namespace

IValue Dion::state_dict() const { return state_dict_of(false); }

IValue Dion::whole_state_dict() try {
  private_->agree(*this, {engine::Operation::whole_state_dict, [&] { private_->check(*this); }});
  private_->average_momenta(*this);
  return state_dict_of(true);
} catch (const c10::Error&) {
  rethrow_in_one_sentence();
}

IValue Dion::state_dict_of(bool whole) const try {
  private_->refuse_if_broken();
  private_->refuse_if_decoupled(*this);
  const at::NoGradGuard no_grad;
  c10::Dict<int64_t, Tensors> states;
  c10::impl::GenericList groups(c10::AnyType::get());
  int64_t index = 0;
  for (std::size_t i = 0; i < param_groups().size(); ++i) {
    const DionOptions& options = optim::options_of(param_groups()[i], i);
    Entries entries = optim::to_entries(options);
    if (i < private_->unknown.size()) entries.insert(private_->unknown[i].begin(), private_->unknown[i].end());
    c10::impl::GenericList indices(c10::AnyType::get());
    for (const at::Tensor& param : param_groups()[i].params()) {
      const auto found = state().find(param.unsafeGetTensorImpl());
      if (found != state().end()) {
        const auto& own = optim::ours(*found->second);
        const Layout& layout = optim::layout_of(private_->layouts, param);
        states.insert(index, to_tensors(whole ? optim::gather_state(param, own, layout, options) : own));
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

void Dion::load_state_dict(const IValue& state_dict) try {
  const engine::Speaking speaking(optim::words_of(param_groups()));
  optim::check_nesting(state_dict, "torchdion::Dion: the state dict");
  const GenericDict saved = to_dict(state_dict, "a state dict");
  const States saved_states = to_states(entry(saved, "state", "a state dict"));
  const std::vector<IValue> saved_groups = to_list(entry(saved, "param_groups", "a state dict"), "param_groups");
  TORCH_CHECK_VALUE(saved_groups.size() == param_groups().size(), "torchdion::Dion: the state dict has ",
                    saved_groups.size(), " parameter groups, the optimizer ", param_groups().size());

  std::vector<OptimizerParamGroup> groups = param_groups();
  std::vector<Entries> unknown;
  std::decay_t<decltype(state())> states;
  std::set<int64_t> known;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const std::string where = optim::group_name(i);
    Entries entries = to_entries(saved_groups[i], "a parameter group" + where);
    TORCH_CHECK_VALUE(entries.contains("params"), "torchdion::Dion: a parameter group must have the key 'params'",
                      where);
    const std::vector<IValue> indices = to_list(entries.at("params"), "params" + where);
    TORCH_CHECK_VALUE(indices.size() == groups[i].params().size(), "torchdion::Dion: the state dict has ",
                      indices.size(), " parameters", where, ", the optimizer ", groups[i].params().size());
    entries.erase("params");
    entries.erase("capturable");      // a matter of this run
    optim::options_of(groups[i], i);  // refuses those of another optimizer
    auto& options = static_cast<DionOptions&>(groups[i].options());
    options.lr(optim::lr_of(options)).weight_decay(optim::weight_decay_of(options));
    unknown.push_back(optim::from_entries(entries, options, where));
    for (std::size_t k = 0; k < indices.size(); ++k) {
      const at::Tensor& param = groups[i].params()[k];
      const std::string name = optim::parameter_name(k, i);
      TORCH_CHECK_VALUE(indices[k].isInt() && known.insert(indices[k].toInt()).second, "torchdion::Dion: params", where,
                        " must be distinct integers, got ", optim::entry_text(indices[k]));
      optim::check_parameter(param, options, name);
      const Layout& layout = optim::layout_of(private_->layouts, param);
      optim::check_layout(param, layout, options, name);
      const auto found = saved_states.find(indices[k].toInt());
      if (found == saved_states.end() || found->second.empty()) continue;
      states[param.unsafeGetTensorImpl()] = SavedState(found->second, param, layout, options, name).load();
    }
  }
  optim::check_groups(groups, static_cast<const DionOptions&>(defaults()));
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

void Dion::save(torch::serialize::OutputArchive& archive) const {
  const GenericDict saved = state_dict().toGenericDict();
  archive.write("state", saved.at("state"));
  archive.write("param_groups", saved.at("param_groups"));
}

void Dion::load(torch::serialize::InputArchive& archive) try {
  Entries saved;
  for (const char* key : {"state", "param_groups"}) {
    TORCH_CHECK_VALUE(archive.try_read(key, saved[key]), "torchdion::Dion: the archive has no '", key,
                      "'; is it that of an optimizer?");
  }
  load_state_dict(to_dict(saved));
} catch (const c10::Error&) {
  rethrow_in_one_sentence();
}

}  // namespace torchdion
