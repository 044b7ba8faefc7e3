#include "others/entries.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cctype>

#include "linalg/memory.h"
#include "words.h"

namespace torchdion::others {

namespace {

constexpr std::size_t kLongest = 100;

// 0.5, 2.0, 1e+30
std::string number_text(double number) {
  const std::string text = shown(number);
  return text.find_first_not_of("-0123456789") == std::string::npos ? text + ".0" : text;
}

std::string list_text(const std::vector<c10::IValue>& values) {
  std::string text;
  for (const c10::IValue& value : values) {
    if (text.size() > kLongest || value.isList() || value.isTuple()) return "";
    text += (text.empty() ? "" : ", ") + entry_text(value);
  }
  return text;
}

// The number in a tensor of one, for which the host may wait.
std::optional<double> number_in(const at::Tensor& tensor) {
  const at::ScalarType dtype = linalg::has_memory(tensor) ? tensor.scalar_type() : at::ScalarType::Undefined;
  const bool is_real = at::isFloatingType(dtype) || at::isIntegralType(dtype, /*includeBool=*/false);
  return is_real && tensor.numel() == 1 ? std::optional(tensor.item<double>()) : std::nullopt;
}

bool is_number(const c10::IValue& value) { return value.isDouble() || value.isInt(); }

}  // namespace

std::string kind_of(const c10::IValue& value) {
  if (value.isNone()) return "NoneType";
  if (value.isBool()) return "bool";
  if (value.isInt()) return "int";
  if (value.isDouble()) return "float";
  if (value.isString()) return "str";
  if (value.isList()) return "list";
  if (value.isTuple()) return "tuple";
  if (value.isGenericDict()) return "dict";
  return value.tagKind();
}

std::string entry_text(const c10::IValue& value) {
  if (value.isNone()) return "None";
  if (value.isBool()) return value.toBool() ? "True" : "False";
  if (value.isInt()) return std::to_string(value.toInt());
  if (value.isDouble()) return number_text(value.toDouble());
  if (const Foreign* object = as_foreign(value)) return object->shown();
  if (value.isString()) {
    const std::string& text = value.toStringRef();
    const bool has_control = std::any_of(text.begin(), text.end(), [](unsigned char c) { return std::iscntrl(c); });
    if (text.size() <= kLongest && !has_control) return "'" + text + "'";
  }
  if (value.isList()) {
    const std::vector<c10::IValue> values = value.toListRef().vec();
    const std::string text = list_text(values);
    if (values.empty() || !text.empty()) return "[" + text + "]";
  }
  if (value.isTuple() && value.toTupleRef().elements().size() > 1) {
    const std::string text = list_text(value.toTupleRef().elements().vec());
    if (!text.empty()) return "(" + text + ")";
  }
  return "a value of type " + kind_of(value);
}

const Foreign* as_foreign(const c10::IValue& value) {
  return value.isCapsule() ? dynamic_cast<const Foreign*>(value.toCapsule().get()) : nullptr;
}

c10::IValue to_entry(const algorithms::Value& value) {
  if (const auto* flag = std::get_if<bool>(&value)) return *flag;
  if (const auto* integer = std::get_if<int64_t>(&value)) return *integer;
  if (const auto* number = std::get_if<double>(&value)) return *number;
  if (const auto* pair = std::get_if<algorithms::Pair>(&value)) {
    return c10::ivalue::Tuple::create(pair->first, pair->second);
  }
  if (const auto* text = std::get_if<std::string_view>(&value)) return std::string(*text);
  return {};
}

std::optional<algorithms::Value> value_of(const c10::IValue& entry) {
  if (entry.isNone()) return algorithms::Value();
  if (entry.isBool()) return entry.toBool();
  if (entry.isInt()) return entry.toInt();
  if (entry.isDouble()) return entry.toDouble();
  if (entry.isString()) return std::string_view(entry.toStringRef());
  const std::vector<c10::IValue> pair = items_of(entry);
  if (pair.size() != 2 || !is_number(pair[0]) || !is_number(pair[1])) return std::nullopt;
  return algorithms::Pair{*number_of(pair[0]), *number_of(pair[1])};
}

algorithms::Value checked(const algorithms::Option& option, const c10::IValue& entry, const std::string& where) {
  std::optional<algorithms::Value> value = value_of(entry);
  if (entry.isTensor() && option.may_be_tensor) value = number_in(entry.toTensor());
  if (value) value = algorithms::accepted(option, *value);
  TORCH_CHECK_VALUE(value, algorithms::refusal(option, entry_text(entry), where));
  return *value;
}

std::optional<double> number_of(const c10::IValue& value) {
  if (value.isBool()) return value.toBool();
  return is_number(value) ? std::optional(value.toScalar().toDouble()) : std::nullopt;
}

bool is_share(const c10::IValue& value) { return is_number(value) && *number_of(value) >= 0 && *number_of(value) < 1; }

std::vector<c10::IValue> items_of(const c10::IValue& value) {
  if (value.isTuple()) return value.toTupleRef().elements().vec();
  return value.isList() ? value.toListRef().vec() : std::vector<c10::IValue>();
}

bool is_same(const c10::IValue& one, const c10::IValue& other) {
  if (one.is(other)) return true;
  const auto number = [](const c10::IValue& value) {
    if (!value.isTensor()) return number_of(value);
    return value.toTensor().is_cpu() ? number_in(value.toTensor()) : std::nullopt;
  };
  if (const std::optional<double> first = number(one)) return first == number(other);
  if (one.isString()) return other.isString() && one.toStringRef() == other.toStringRef();
  const std::vector<c10::IValue> items = items_of(one), others = items_of(other);
  return !items.empty() && std::equal(items.begin(), items.end(), others.begin(), others.end(), is_same);
}

c10::IValue entry(const Entries& entries, const std::string& key) {
  const auto found = entries.find(key);
  return found == entries.end() ? c10::IValue() : found->second;
}

std::string text_of(const Entries& entries, const std::string& key) {
  const c10::IValue value = entry(entries, key);
  return value.isString() ? value.toStringRef() : std::string();
}

}  // namespace torchdion::others
