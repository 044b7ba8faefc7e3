// State dicts of one group without states.
#pragma once

#include <ATen/core/Dict.h>
#include <torchdion/torchdion.h>

#include <string>
#include <utility>
#include <vector>

namespace torchdion {

using Dict = c10::impl::GenericDict;
using Items = std::vector<std::pair<std::string, c10::IValue>>;

inline c10::IValue list_of_one(const c10::IValue& value) {
  c10::impl::GenericList list(c10::AnyType::get());
  list.push_back(value);
  return list;
}

// A state dict without states: the group of `optimizer`, or of no optimizer here, and more entries.
inline c10::IValue saved_with(const Items& items, const Optimizer* optimizer = nullptr) {
  Dict group(c10::StringType::get(), c10::AnyType::get()), all(c10::StringType::get(), c10::AnyType::get());
  if (optimizer) {
    const c10::IValue own = optimizer->state_dict().toGenericDict().at("param_groups").toListRef().front();
    for (const auto& item : own.toGenericDict()) group.insert(item.key(), item.value());
  }
  group.insert_or_assign("params", list_of_one(0));
  for (const auto& [key, value] : items) group.insert_or_assign(key, value);
  all.insert("state", Dict(c10::IntType::get(), c10::AnyType::get()));
  all.insert("param_groups", list_of_one(group));
  return all;
}

inline Dict first_group_of(const Optimizer& optimizer) {
  return optimizer.state_dict().toGenericDict().at("param_groups").toListRef().front().toGenericDict();
}

}  // namespace torchdion
