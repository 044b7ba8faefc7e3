// The words for the values of each enumeration: in Python's options, in state dicts and in errors.
#pragma once

#include <c10/core/ScalarType.h>
#include <torchdion/options.h>

namespace torchdion::optim {

template <class T>
struct Named {
  T value;
  const char* name;
};

template <class T>
inline constexpr int names = 0;  // specialized for what has names

template <>
inline constexpr Named<Algorithm> names<Algorithm>[] = {
    {Algorithm::dion, "dion"}, {Algorithm::lion, "lion"}, {Algorithm::adamw, "adamw"}};
template <>
inline constexpr Named<Orientation> names<Orientation>[] = {{Orientation::right, "right"}, {Orientation::left, "left"}};
template <>
inline constexpr Named<Orthonormalize> names<Orthonormalize>[] = {{Orthonormalize::automatic, "auto"},
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
const char* name_of(T value) {
  for (const Named<T>& known : names<T>) {
    if (known.value == value) return known.name;
  }
  return "none of its values";
}

}  // namespace torchdion::optim
