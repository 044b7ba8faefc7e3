// The options of parameter groups: each is declared once, for the engine and for both languages.
#pragma once

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace torchdion::algorithms {

using Pair = std::pair<double, double>;

// The value of an option. Texts are those of a declaration, of which they are views; a dtype is its name in Python.
using Value = std::variant<std::monostate, bool, int64_t, double, Pair, std::string_view>;

inline bool is_none(const Value& value) { return std::holds_alternative<std::monostate>(value); }

// A text that an option may have, as Python and state dicts write it, and the enumerator that C++ calls it.
struct Choice {
  constexpr Choice(std::string_view text) : name(text) {}
  template <class Enum>
  constexpr Choice(std::string_view text, std::string_view of_value, Enum value)
      : name(text), enumerator(of_value), value(static_cast<int>(value)) {}

  std::string_view name, enumerator = {};
  int value = 0;  // of the enumerator
};

// All of them, of one enumeration in C++; without one C++ writes the texts too.
struct Choices {
  std::string_view enumeration = {};
  std::span<const Choice> all = {};
};

struct Allowed {
  enum class Kind { flag, integer, number, pair, text, dtype };
  Kind kind;
  double least = -std::numeric_limits<double>::infinity(), most = std::numeric_limits<double>::infinity();
  bool without_least = false, without_most = false;  // whether the bounds themselves are not allowed
  Choices choices = {};
  bool or_none = false;
  bool none_is_a_value = false;  // not what is declared
};

// What no graph captures: steps with this value, and why.
struct Uncaptured {
  Value value = {};
  std::string_view why = "the host would wait for the device";
};

struct Option {
  std::string_view name;
  Value initial;  // of a group that is given nothing
  Allowed allowed;
  std::string_view doc;        // one line, with its source
  bool may_be_tensor = false;  // of one number, which steps read anew
  Uncaptured uncaptured = {};
  bool of_optimizer = false;  // alike in all groups
  bool of_run = false;        // no checkpoint changes it
};

// What allowed values are called in a sentence, in the language of words().
inline constexpr Allowed kFlag{Allowed::Kind::flag};
inline constexpr Allowed kFlagOrNone{.kind = Allowed::Kind::flag, .or_none = true};
inline constexpr Allowed kAnyInteger{Allowed::Kind::integer};
inline constexpr Allowed kNotNegative{.kind = Allowed::Kind::number, .least = 0};
inline constexpr Allowed kBelowOne{.kind = Allowed::Kind::number, .least = 0, .most = 1, .without_most = true};
inline constexpr Allowed kFraction{.kind = Allowed::Kind::number, .least = 0, .most = 1, .without_least = true};
inline constexpr Allowed kAtLeastOne{.kind = Allowed::Kind::number, .least = 1};
inline constexpr Allowed kCounting{.kind = Allowed::Kind::integer, .least = 1};
inline constexpr Allowed kBelowHundred{.kind = Allowed::Kind::integer, .least = 1, .most = 99};
inline constexpr Allowed kDimsOrNone{.kind = Allowed::Kind::integer, .least = 0, .or_none = true};
inline constexpr Allowed kBetas{
    .kind = Allowed::Kind::pair, .least = 0, .most = 1, .without_most = true, .or_none = true};
inline constexpr Allowed one_of_or_none(Choices choices) {
  return {.kind = Allowed::Kind::text, .choices = choices, .or_none = true, .none_is_a_value = true};
}
inline constexpr Allowed one_of(Choices choices) { return {.kind = Allowed::Kind::text, .choices = choices}; }

// The dtypes of parameters, gradients and states.
inline constexpr Choice kDtypeNames[] = {{"float64", "Double", c10::ScalarType::Double},
                                         {"float32", "Float", c10::ScalarType::Float},
                                         {"bfloat16", "BFloat16", c10::ScalarType::BFloat16},
                                         {"float16", "Half", c10::ScalarType::Half}};
inline constexpr Allowed kDtypeOrNone{.kind = Allowed::Kind::dtype, .choices = {"", kDtypeNames}, .or_none = true};

// What of a value may be given: the text of the declaration that a given text equals, the number of an integer; none
// where the option does not take it.
std::optional<Value> accepted(const Option& option, const Value& given);

// "in [0, 1)", "one of 'right', 'left'", in the language of words().
std::string words_of(const Option& option);
// The value as a program writes it: 0.95, "right", Orientation::right.
std::string shown(const Option& option, const Value& value);
// "capturable=True" or "capturable(true)".
std::string assigned(const Option& option, const Value& value);
// "torchdion.Dion: mu must be in [0, 1), got 1.5 (parameter group 2)", of what was given as the program wrote it.
std::string refusal(const Option& option, const std::string& given, const std::string& where);

// Values by the names of options, all of which are declared.
class Options {
 public:
  using Named = std::pair<std::string_view, Value>;

  void set(std::string_view name, Value value);
  bool has(std::string_view name) const { return find(name) != nullptr; }
  const Value& at(std::string_view name) const;

  bool flag(std::string_view name) const { return std::get<bool>(at(name)); }
  int64_t integer(std::string_view name) const { return std::get<int64_t>(at(name)); }
  double number(std::string_view name) const { return std::get<double>(at(name)); }
  Pair pair(std::string_view name) const { return std::get<Pair>(at(name)); }
  std::string_view text(std::string_view name) const { return std::get<std::string_view>(at(name)); }
  const std::vector<Named>& all() const { return values_; }
  // None: 0.
  int64_t integer_or_zero(std::string_view name) const;
  // Of an option with none, and of no option (an empty name): the fallback.
  c10::ScalarType dtype_or(std::string_view name, c10::ScalarType fallback) const;

 private:
  const Value* find(std::string_view name) const;
  std::vector<Named> values_;
};

// The enumerator of a text that is among the choices.
template <class Enum>
constexpr Enum enumerator(const Choices& choices, std::string_view name) {
  const auto found = std::ranges::find(choices.all, name, &Choice::name);
  return static_cast<Enum>(found->value);
}

// The text of an enumerator; empty: it is none of the choices.
template <class Enum>
constexpr std::string_view text_of(const Choices& choices, Enum value) {
  const auto found = std::ranges::find(choices.all, static_cast<int>(value), &Choice::value);
  return found == choices.all.end() ? std::string_view() : found->name;
}

inline c10::ScalarType dtype_of(std::string_view name) { return enumerator<c10::ScalarType>({"", kDtypeNames}, name); }
inline std::string_view name_of(c10::ScalarType dtype) { return text_of({"", kDtypeNames}, dtype); }  // or empty

}  // namespace torchdion::algorithms
