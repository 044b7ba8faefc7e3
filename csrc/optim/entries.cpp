#include "optim/entries.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <vector>

namespace torchdion::optim {

namespace {

constexpr std::size_t kLongest = 100;

// 0.5, 2.0, 1e+30
std::string number_text(double number) {
  const bool is_plain = number == 0 || (std::abs(number) >= 1e-4 && std::abs(number) < 1e16);
  std::array<char, 40> digits;
  const auto format = is_plain ? std::chars_format::fixed : std::chars_format::scientific;
  char* const begin = digits.data();
  const std::string text(begin, std::to_chars(begin, begin + digits.size(), number, format).ptr);
  return is_plain && text.find('.') == std::string::npos ? text + ".0" : text;
}

std::string list_text(const std::vector<c10::IValue>& values) {
  std::string text;
  for (const c10::IValue& value : values) {
    if (text.size() > kLongest || value.isList() || value.isTuple()) return "";
    text += (text.empty() ? "" : ", ") + entry_text(value);
  }
  return text;
}

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

}  // namespace torchdion::optim
