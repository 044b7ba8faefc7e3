// Options for the tests, set by their names.
#pragma once

#include <initializer_list>
#include <string_view>
#include <utility>

#include "algorithms/all.h"

namespace torchdion::algorithms {

using NamedValues = std::initializer_list<std::pair<std::string_view, Value>>;

// Those of the algorithm: others are as declared.
inline Options options_of(const Algorithm& algorithm, NamedValues values) {
  Options given;
  for (const auto& [name, value] : values) given.set(name, value);
  return options_of(algorithm, given);
}

}  // namespace torchdion::algorithms
