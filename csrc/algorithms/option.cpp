#include "algorithms/option.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cmath>

#include "words.h"

namespace torchdion::algorithms {

using torchdion::shown;

namespace {

bool in_python() { return words().language == Language::python; }

bool is_between(const Allowed& allowed, double value) {
  const bool above = allowed.without_least ? value > allowed.least : value >= allowed.least;
  const bool below = allowed.without_most ? value < allowed.most : value <= allowed.most;
  return above && below && std::isfinite(value);
}

// A number, of which an integer is one.
std::optional<double> as_number(const Value& value) {
  if (const auto* integer = std::get_if<int64_t>(&value)) return static_cast<double>(*integer);
  if (const auto* number = std::get_if<double>(&value)) return *number;
  return std::nullopt;
}

std::string words_of_numbers(const Allowed& allowed, const char* noun) {
  if (!std::isfinite(allowed.least)) return noun;
  if (!std::isfinite(allowed.most)) return c10::str(noun, " ≥ ", shown(allowed.least));
  return c10::str("in ", allowed.without_least ? "(" : "[", shown(allowed.least), ", ", shown(allowed.most),
                  allowed.without_most ? ")" : "]");
}

std::string shown_choice(const Choices& choices, const Choice& choice) {
  if (in_python()) return c10::str("'", choice.name, "'");
  if (choices.enumeration.empty()) return c10::str('"', choice.name, '"');
  return c10::str(choices.enumeration, "::", choice.enumerator);
}

std::string words_of_choices(const Choices& choices) {
  std::string all = "one of ";
  for (std::size_t i = 0; i < choices.all.size(); ++i) {
    all += c10::str(i == 0 ? "" : ", ", shown_choice(choices, choices.all[i]));
  }
  return all;
}

std::string words_of_kind(const Allowed& allowed) {
  switch (allowed.kind) {
    case Allowed::Kind::flag:
      return c10::str(shown(true), " or ", shown(false));
    case Allowed::Kind::integer:
      if (std::isfinite(allowed.most)) return c10::str("an integer ", words_of_numbers(allowed, ""));
      return words_of_numbers(allowed, std::isfinite(allowed.least) ? "an integer" : "an integer of 64 bits");
    case Allowed::Kind::number:
      return words_of_numbers(allowed, "a finite number");
    case Allowed::Kind::pair:
      return c10::str("two numbers ", words_of_numbers(allowed, ""));
    case Allowed::Kind::text:
      return words_of_choices(allowed.choices);
    case Allowed::Kind::dtype:
      return in_python() ? "a floating-point torch.dtype or its name" : "a floating-point dtype";
  }
  return {};
}

}  // namespace

std::optional<Value> accepted(const Option& option, const Value& given) {
  const Allowed& allowed = option.allowed;
  const auto given_if = [&](bool is_allowed) { return is_allowed ? std::optional(given) : std::nullopt; };
  if (is_none(given)) return given_if(allowed.or_none);
  switch (allowed.kind) {
    case Allowed::Kind::flag:
      return given_if(std::holds_alternative<bool>(given));
    case Allowed::Kind::integer: {
      const auto* integer = std::get_if<int64_t>(&given);
      return given_if(integer && is_between(allowed, static_cast<double>(*integer)));
    }
    case Allowed::Kind::number: {
      const std::optional<double> number = as_number(given);
      return number && is_between(allowed, *number) ? std::optional<Value>(*number) : std::nullopt;
    }
    case Allowed::Kind::pair: {
      const auto* pair = std::get_if<Pair>(&given);
      return given_if(pair && is_between(allowed, pair->first) && is_between(allowed, pair->second));
    }
    case Allowed::Kind::text:
    case Allowed::Kind::dtype: {
      const auto* text = std::get_if<std::string_view>(&given);
      if (!text) return std::nullopt;
      const auto choice = std::ranges::find(allowed.choices.all, *text, &Choice::name);
      return choice == allowed.choices.all.end() ? std::nullopt : std::optional<Value>(choice->name);
    }
  }
  return std::nullopt;
}

std::string words_of(const Option& option) {
  std::string all = words_of_kind(option.allowed);
  if (option.allowed.or_none) {
    const bool is_listed = option.allowed.kind == Allowed::Kind::dtype && in_python();
    all = c10::str(shown_none(), is_listed ? ", " : " or ", all);
  }
  if (option.may_be_tensor && in_python()) all += c10::str(" (a Tensor ", option.name, " must be 1-element)");
  return all;
}

std::string shown(const Option& option, const Value& value) {
  if (std::holds_alternative<std::monostate>(value)) return shown_none();
  if (const auto* flag = std::get_if<bool>(&value)) return shown(*flag);
  if (const auto* integer = std::get_if<int64_t>(&value)) return std::to_string(*integer);
  if (const auto* number = std::get_if<double>(&value)) return shown(*number);
  if (const auto* pair = std::get_if<Pair>(&value)) {
    const auto [open, close] = in_python() ? std::pair("(", ")") : std::pair("{", "}");
    return c10::str(open, shown(pair->first), ", ", shown(pair->second), close);
  }
  const std::string_view text = std::get<std::string_view>(value);
  for (const Choice& choice : option.allowed.choices.all) {
    if (choice.name != text) continue;
    if (option.allowed.kind == Allowed::Kind::dtype && !in_python()) return shown(dtype_of(text));
    return shown_choice(option.allowed.choices, choice);
  }
  return in_python() ? c10::str("'", text, "'") : c10::str('"', text, '"');
}

std::string assigned(const Option& option, const Value& value) {
  if (in_python()) return c10::str(option.name, "=", shown(option, value));
  return c10::str(option.name, "(", shown(option, value), ")");
}

std::string refusal(const Option& option, const std::string& given, const std::string& where) {
  return c10::str(prefix(), option.name, " must be ", words_of(option), ", got ", given, where);
}

void Options::set(std::string_view name, Value value) {
  const auto known = std::ranges::find(values_, name, &Named::first);
  if (known == values_.end()) {
    values_.emplace_back(name, value);
  } else {
    known->second = value;
  }
}

const Value* Options::find(std::string_view name) const {
  const auto known = std::ranges::find(values_, name, &Named::first);
  return known == values_.end() ? nullptr : &known->second;
}

const Value& Options::at(std::string_view name) const {
  const Value* value = find(name);
  TORCH_INTERNAL_ASSERT(value, "the option ", name, " is not declared");
  return *value;
}

int64_t Options::integer_or_zero(std::string_view name) const {
  const auto* integer = std::get_if<int64_t>(&at(name));
  return integer ? *integer : 0;
}

c10::ScalarType Options::dtype_or(std::string_view name, c10::ScalarType fallback) const {
  const auto* text = name.empty() ? nullptr : std::get_if<std::string_view>(&at(name));
  return text ? dtype_of(*text) : fallback;
}

}  // namespace torchdion::algorithms
