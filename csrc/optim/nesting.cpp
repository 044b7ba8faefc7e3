#include "optim/nesting.h"

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>

#include <algorithm>
#include <unordered_map>

#include "optim/pickle_stack.h"

namespace torchdion::optim {

namespace {

using Depths = std::unordered_map<const void*, int>;

// Of containers in each other, at most one more than may be.
int depth_of(const c10::IValue& value, Depths& known, int above) {
  if (!value.isList() && !value.isGenericDict() && !value.isTuple()) return 0;
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

}  // namespace

void check_nesting(const c10::IValue& value, const std::string& what) {
  Depths known;
  TORCH_CHECK_VALUE(depth_of(value, known, 0) <= kDeepest, what, " holds itself or is nested more than ", kDeepest,
                    " deep");
}

}  // namespace torchdion::optim
