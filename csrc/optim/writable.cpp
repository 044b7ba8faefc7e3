#include "optim/writable.h"

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>

#include <unordered_map>
#include <vector>

#include "linalg/memory.h"
#include "others/entries.h"

namespace torchdion::optim {

namespace {

// Of each container, which may be held by several.
using Known = std::unordered_map<const void*, c10::IValue>;

c10::IValue writable(const c10::IValue& value, Known& known);

c10::IValue copied(const c10::IValue& value, Known& known) {
  if (value.isTuple()) {
    std::vector<c10::IValue> parts;
    for (const c10::IValue& part : value.toTupleRef().elements()) parts.push_back(writable(part, known));
    return c10::ivalue::Tuple::create(std::move(parts));
  }
  if (value.isGenericDict()) {
    c10::impl::GenericDict dict(c10::AnyType::get(), c10::AnyType::get());
    for (const auto& item : value.toGenericDict()) {
      dict.insert_or_assign(writable(item.key(), known), writable(item.value(), known));
    }
    return dict;
  }
  c10::impl::GenericList list(c10::AnyType::get());
  for (const c10::IValue& part : value.toListRef()) list.push_back(writable(part, known));
  return list;
}

c10::IValue writable(const c10::IValue& value, Known& known) {
  if (value.isList() || value.isGenericDict() || value.isTuple()) {
    const void* address = value.internalToPointer();
    if (const auto found = known.find(address); found != known.end()) return found->second;
    return known[address] = copied(value, known);
  }
  const bool is_plain = value.isNone() || value.isBool() || value.isInt() || value.isDouble() || value.isString();
  TORCH_CHECK(is_plain || value.isTensor(), "it holds ", others::entry_text(value),
              "; there may be tensors, numbers, strings and containers of them");
  TORCH_CHECK(is_plain || (value.toTensor().defined() && value.toTensor().layout() == at::kStrided &&
                           linalg::has_memory(value.toTensor())),
              "its tensors must be dense ones with memory, got ",
              value.toTensor().defined() ? value.toTensor().toString() : "an undefined one");
  return value;
}

}  // namespace

c10::IValue writable(const c10::IValue& value) {
  Known known;
  return writable(value, known);
}

}  // namespace torchdion::optim
