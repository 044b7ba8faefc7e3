#include "optim/writable.h"

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>

#include <algorithm>
#include <unordered_map>
#include <vector>

#include "linalg/memory.h"
#include "optim/pickle_stack.h"
#include "others/entries.h"

namespace torchdion::optim {

namespace {

bool is_container(const c10::IValue& value) { return value.isList() || value.isGenericDict() || value.isTuple(); }

using Depths = std::unordered_map<const void*, int>;

// Of containers in each other, at most one more than may be.
int depth_of(const c10::IValue& value, Depths& known, int above) {
  if (!is_container(value)) return 0;
  if (above > kDeepest) return 1;
  const auto [found, is_new] = known.emplace(value.internalToPointer(), kDeepest + 1);  // as long as it is open
  if (!is_new) return found->second;
  int depth = 0;
  const auto visit = [&](const c10::IValue& part) {
    if (depth <= kDeepest) depth = std::max(depth, depth_of(part, known, above + 1));
  };
  if (value.isGenericDict()) {
    for (const auto& item : value.toGenericDict()) visit(item.key()), visit(item.value());
  } else if (value.isTuple()) {
    for (const c10::IValue& part : value.toTupleRef().elements()) visit(part);
  } else {
    for (const c10::IValue& part : value.toListRef()) visit(part);
  }
  depth = std::min(depth, kDeepest) + 1;
  known[value.internalToPointer()] = depth;
  return depth;
}

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
  if (is_container(value)) {
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

void check_nesting(const c10::IValue& value, const std::string& what) {
  Depths known;
  TORCH_CHECK_VALUE(depth_of(value, known, 0) <= kDeepest, what, " holds itself or is nested more than ", kDeepest,
                    " deep");
}

c10::IValue writable(const c10::IValue& value) {
  Known known;
  return writable(value, known);
}

}  // namespace torchdion::optim
