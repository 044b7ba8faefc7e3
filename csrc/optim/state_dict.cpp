// The state dict that both languages share.
#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/grad_mode.h>
#include <torch/serialize/archive.h>

#include "one_sentence.h"
#include "optim/groups.h"
#include "optim/options.h"
#include "optim/parameters.h"
#include "optim/private.h"
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

IValue Optimizer::state_dict() const try {
  const Speaking speaking(held().words(*this));
  optim::Front front = held().front(*this);
  return state_dict_of(held().core.states(front), /*whole=*/false);
} catch (const c10::Error&) {
  rethrow_in_one_sentence();
}

IValue Optimizer::whole_state_dict() try {
  const Speaking speaking(held().words(*this));
  optim::Front front = held().front(*this);
  return state_dict_of(held().core.whole_states(front), /*whole=*/true);
} catch (const c10::Error&) {
  rethrow_in_one_sentence();
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

void Optimizer::load(torch::serialize::InputArchive& archive) try {
  const Speaking speaking(held().words(*this));
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
