// The words for the values of options: those of Python, which state dicts have, and those of C++, which errors have.
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/StringUtil.h>
#include <torchdion/options.h>

#include <optional>
#include <string>
#include <tuple>
#include <type_traits>

namespace torchdion::optim {

template <class T>
struct Named {
  T value;
  const char* name;               // in a state dict
  const char* enumerator = name;  // of the enumeration
};

template <class T>
inline constexpr int names = 0;  // specialized for what has names

template <>
inline constexpr Named<Algorithm> names<Algorithm>[] = {
    {Algorithm::dion, "dion"}, {Algorithm::lion, "lion"}, {Algorithm::adamw, "adamw"}};
template <>
inline constexpr Named<Orientation> names<Orientation>[] = {{Orientation::right, "right"}, {Orientation::left, "left"}};
template <>
inline constexpr Named<Orthonormalize> names<Orthonormalize>[] = {{Orthonormalize::automatic, "auto", "automatic"},
                                                                  {Orthonormalize::rcqr, "rcqr"},
                                                                  {Orthonormalize::cholesky_qr, "cholesky_qr"},
                                                                  {Orthonormalize::qr, "qr"}};
template <>
inline constexpr Named<Nonfinite> names<Nonfinite>[] = {{Nonfinite::propagate, "propagate"},
                                                        {Nonfinite::zero, "zero"},
                                                        {Nonfinite::skip_step, "skip_step"},
                                                        {Nonfinite::raise, "raise"}};
template <>
inline constexpr Named<Precision> names<Precision>[] = {
    {Precision::highest, "highest"}, {Precision::high, "high"}, {Precision::medium, "medium"}};
template <>
inline constexpr Named<c10::ScalarType> names<c10::ScalarType>[] = {{c10::ScalarType::Double, "float64"},
                                                                    {c10::ScalarType::Float, "float32"},
                                                                    {c10::ScalarType::BFloat16, "bfloat16"},
                                                                    {c10::ScalarType::Half, "float16"}};

template <class T>
inline constexpr const char* enumeration = "";
template <>
inline constexpr const char* enumeration<Algorithm> = "Algorithm";
template <>
inline constexpr const char* enumeration<Orientation> = "Orientation";
template <>
inline constexpr const char* enumeration<Orthonormalize> = "Orthonormalize";
template <>
inline constexpr const char* enumeration<Nonfinite> = "Nonfinite";
template <>
inline constexpr const char* enumeration<Precision> = "Precision";

// A value as a C++ program writes it.
template <class T>
requires std::is_enum_v<T> std::string shown(T value) {
  for (const Named<T>& known : names<T>) {
    if (known.value == value) return c10::str(enumeration<T>, "::", known.enumerator);
  }
  return std::to_string(static_cast<int>(value));
}
inline std::string shown(c10::ScalarType value) { return c10::toString(value); }
inline std::string shown(bool value) { return value ? "true" : "false"; }
inline std::string shown(int64_t value) { return std::to_string(value); }
std::string shown(double value);  // the shortest digits that make this number
inline std::string shown(const std::tuple<double, double>& pair) {
  return c10::str("{", shown(std::get<0>(pair)), ", ", shown(std::get<1>(pair)), "}");
}
template <class T>
std::string shown(const std::optional<T>& value) {
  return value ? shown(*value) : "none";
}

// All values of an enumeration, in a sentence: as enumerators, or as a state dict has them.
template <class T>
std::string one_of(bool in_state_dict) {
  std::string all;
  const std::size_t count = std::size(names<T>);
  for (std::size_t i = 0; i < count; ++i) {
    const Named<T>& known = names<T>[i];
    all += i == 0 ? "" : (i + 1 < count ? ", " : " or ");
    all += in_state_dict ? c10::str("\"", known.name, "\"") : shown(known.value);
  }
  return all;
}

}  // namespace torchdion::optim
