// Names of modules and parameters, and tables of them.
#pragma once

#include <algorithm>
#include <cctype>
#include <string>
#include <vector>

#include "routing/model.h"

namespace torchdion::routing {

inline bool contains(const auto& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

inline std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char letter) { return std::tolower(letter); });
  return text;
}

// Digits alone, as members of a list are named.
bool is_number(const std::string& part);

// "layers.0.attn" in its parts.
std::vector<std::string> parts_of(const std::string& name);

// The parts of a module's name from the top of the model that wrappers hold, without what wrappers insert.
std::vector<std::string> path_of(const std::string& name);

// The words of one part, parted by case, digits and other signs, in small letters: "LayerNormMLP" is layer, norm, mlp.
std::vector<std::string> words_of(const std::string& part);

// Keys that may name a parameter, the most telling first: its own, and that of the list or dict that holds it. A number
// says nothing.
std::vector<std::string> keys_of(const Module& owner, const Parameter& parameter);

}  // namespace torchdion::routing
