// The words for the values of each enumeration: in Python's options, in state dicts and in errors.
#pragma once

#include <c10/core/ScalarType.h>
#include <torchdion/options.h>

#include <array>

namespace torchdion::optim {

template <class T>
struct Named {
  T value;
  const char* name;
};

template <class T>
inline constexpr int names = 0;  // specialized for what has names

template <>
inline constexpr std::array names<Algorithm> = {Named{Algorithm::dion, "dion"}, Named{Algorithm::lion, "lion"},
                                                Named{Algorithm::adamw, "adamw"}};
template <>
inline constexpr std::array names<Orientation> = {Named{Orientation::right, "right"}, Named{Orientation::left, "left"}};
template <>
inline constexpr std::array names<Orthonormalize> = {
    Named{Orthonormalize::automatic, "auto"}, Named{Orthonormalize::rcqr, "rcqr"},
    Named{Orthonormalize::cholesky_qr, "cholesky_qr"}, Named{Orthonormalize::qr, "qr"}};
template <>
inline constexpr std::array names<Nonfinite> = {
    Named{Nonfinite::propagate, "propagate"}, Named{Nonfinite::zero, "zero"}, Named{Nonfinite::skip_step, "skip_step"},
    Named{Nonfinite::raise, "raise"}};
template <>
inline constexpr std::array names<c10::ScalarType> = {
    Named{c10::ScalarType::Double, "float64"}, Named{c10::ScalarType::Float, "float32"},
    Named{c10::ScalarType::BFloat16, "bfloat16"}, Named{c10::ScalarType::Half, "float16"}};

}  // namespace torchdion::optim
