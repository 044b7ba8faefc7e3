// Names of modules and parameters, and tables of them.
#pragma once

#include <algorithm>
#include <cctype>
#include <string>

namespace torchdion::routing {

inline bool contains(const auto& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

inline std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char letter) { return std::tolower(letter); });
  return text;
}

}  // namespace torchdion::routing
