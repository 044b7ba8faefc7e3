// The state dict that both languages share, and what LibTorch's archives hold of options, states and optimizers.
#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/grad_mode.h>
#include <torch/serialize/archive.h>

#include <atomic>

#include "algorithms/all.h"
#include "optim/front.h"
#include "optim/groups.h"
#include "optim/options.h"
#include "others/option_names.h"
#include "words.h"

namespace torchdion {

using c10::IValue;
using optim::Entries;
using torch::optim::OptimizerParamGroup;

namespace {

using Tensors = c10::Dict<std::string, at::Tensor>;
using GenericDict = c10::impl::GenericDict;

// own: what there is on this rank, also what a program keeps there; ours: what is to be in its place.
Tensors to_tensors(const ParamState& own, const engine::ParameterState& ours) {
  Tensors tensors;
  for (const auto& [name, tensor] : own.tensors()) {
    if (tensor.defined()) tensors.insert(name, tensor);
  }
  for (const engine::StateTensor& one : ours.tensors) tensors.insert_or_assign(one.name, one.tensor);
  return tensors;
}

GenericDict to_dict(const Entries& entries) {
  GenericDict dict(c10::StringType::get(), c10::AnyType::get());
  for (const auto& [key, value] : entries) dict.insert(key, value);
  return dict;
}

}  // namespace

IValue Optimizer::state_dict() const {
  return Private::run(*this, [this](Private& held, optim::Front& front) {
    return state_dict_of(held.core.states(front), /*whole=*/false);
  });
}

IValue Optimizer::whole_state_dict() {
  return Private::run(*this, [this](Private& held, optim::Front& front) {
    return state_dict_of(held.core.whole_states(front), /*whole=*/true);
  });
}

// Of parameters in the order of the core's.
IValue Optimizer::state_dict_of(const std::vector<engine::ParameterState>& own, bool whole) const {
  const at::NoGradGuard no_grad;
  c10::Dict<int64_t, Tensors> states;
  c10::impl::GenericList groups(c10::AnyType::get());
  for (std::size_t g = 0; g < param_groups().size(); ++g) {
    Entries entries = optim::to_entries(optim::options_of(param_groups()[g], g));
    if (g < held().unknown.size()) entries.insert(held().unknown[g].begin(), held().unknown[g].end());
    others::unite_names(entries, /*written=*/{}, /*refuses=*/false, "");
    c10::impl::GenericList indices(c10::AnyType::get());
    const engine::Part* part = nullptr;  // that of the first of them which has one
    auto param = param_groups()[g].params().begin();
    for (const engine::ParameterView& view : held().core.groups[g].parameters) {
      const auto found = state().find((param++)->unsafeGetTensorImpl());
      if (found != state().end()) states.insert(view.index, to_tensors(optim::ours(*found->second), own[view.index]));
      indices.push_back(view.index);
      if (!part && view.part) part = &*view.part;
    }
    entries["params"] = indices;
    if (part && !whole) entries[optim::kOwnedBy] = part->owner();
    groups.push_back(to_dict(entries));
  }
  return to_dict({{"state", states}, {"param_groups", groups}});
}

void Optimizer::save(torch::serialize::OutputArchive& archive) const {
  const GenericDict saved = state_dict().toGenericDict();
  archive.write("state", saved.at("state"));
  archive.write("param_groups", saved.at("param_groups"));
}

void Optimizer::load(torch::serialize::InputArchive& archive) {
  Private::run(*this, [&](Private&, optim::Front&) {
    Entries saved;
    for (const char* key : {"state", "param_groups"}) {
      TORCH_CHECK_VALUE(archive.try_read(key, saved[key]), prefix(), "the archive has no '", key,
                        "'; is it that of an optimizer?");
    }
    load_state_dict(to_dict(saved));
  });
}

void Options::serialize(torch::serialize::OutputArchive& archive) const {
  for (const auto& [name, value] : optim::to_entries(*this)) archive.write(name, value);
}

void Options::serialize(torch::serialize::InputArchive& archive) {
  optim::Entries entries;
  for (const std::string& name : archive.keys()) archive.read(name, entries[name]);
  optim::from_entries(entries, *this, "");
}

const at::Tensor& ParamState::tensor(const std::string& name) const {
  static const at::Tensor none;
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? none : found->second;
}

void ParamState::change() {
  static std::atomic<uint64_t> changes = 0;
  version_ = ++changes;
}

ParamState& ParamState::tensor(const std::string& name, at::Tensor value) {
  change();
  tensors_[name] = std::move(value);
  return *this;
}

std::vector<int64_t> ParamState::whole_sizes(const std::string& name) const {
  const auto found = whole_factors_.find(name);
  return found == whole_factors_.end() ? tensor(name).sizes().vec() : found->second;
}

ParamState& ParamState::whole_factor(const std::string& name, std::vector<int64_t> sizes) {
  change();
  whole_factors_[name] = std::move(sizes);
  return *this;
}

void ParamState::serialize(torch::serialize::OutputArchive& archive) const {
  for (const auto& [name, tensor] : tensors_) {
    if (tensor.defined()) archive.write(name, tensor, /*is_buffer=*/true);
  }
}

void ParamState::serialize(torch::serialize::InputArchive& archive) {
  change();
  const auto read = [&](std::string_view state) {
    const std::string name(state);
    at::Tensor tensor;
    if (archive.try_read(name, tensor, /*is_buffer=*/true)) tensors_[name] = std::move(tensor);
  };
  for (const std::string_view state : algorithms::states()) read(state);
  read("step");
}

}  // namespace torchdion
