// The state dict that both languages share.
#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/grad_mode.h>
#include <torch/serialize/archive.h>

#include "one_sentence.h"
#include "optim/agreement.h"
#include "optim/groups.h"
#include "optim/options.h"
#include "optim/other_names.h"
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

}  // namespace

IValue Optimizer::state_dict() const { return state_dict_of(false); }

IValue Optimizer::whole_state_dict() try {
  const Speaking speaking(held().words(*this));
  held().agree(*this, {engine::Operation::whole_state_dict, [&] { held().check(*this); }});
  held().average_momenta(*this);
  return state_dict_of(true);
} catch (const c10::Error&) {
  rethrow_in_one_sentence();
}

IValue Optimizer::state_dict_of(bool whole) const try {
  const Speaking speaking(held().words(*this));
  held().refuse_if_broken();
  held().refuse_if_decoupled(*this);
  const at::NoGradGuard no_grad;
  c10::Dict<int64_t, Tensors> states;
  c10::impl::GenericList groups(c10::AnyType::get());
  const optim::Parts parts = optim::parts_of(param_groups(), held().layouts);
  int64_t index = 0;
  for (std::size_t i = 0; i < param_groups().size(); ++i) {
    const Options options = optim::with_kept_sides(*this, held().layouts, i, held().said);
    const engine::GroupOptions values = optim::values_of(options, optim::group_name(i));
    Entries entries = optim::to_entries(options);
    if (i < held().unknown.size()) entries.insert(held().unknown[i].begin(), held().unknown[i].end());
    optim::unite_names(entries);
    c10::impl::GenericList indices(c10::AnyType::get());
    for (const at::Tensor& param : param_groups()[i].params()) {
      const auto found = state().find(param.unsafeGetTensorImpl());
      if (found != state().end()) {
        const auto& own = optim::ours(*found->second);
        const Layout& layout = optim::layout_of(held().layouts, param);
        const optim::Part* part = optim::part_of(parts, param);
        states.insert(index, to_tensors(whole ? optim::gather_state(param, own, layout, part, values) : own));
      }
      indices.push_back(index++);
    }
    entries["params"] = indices;
    const optim::Part* part = optim::part_of(parts, param_groups()[i].params());
    if (part && !whole) entries[optim::kOwnedBy] = part->owner();
    groups.push_back(to_dict(entries));
  }
  return to_dict({{"state", states}, {"param_groups", groups}});
} catch (const c10::Error&) {
  rethrow_in_one_sentence();
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
