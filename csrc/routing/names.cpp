#include "routing/names.h"

#include <array>
#include <regex>
#include <sstream>

namespace torchdion::routing {

namespace {

// Parts that wrappers add to names of modules: anywhere, before the name of an adapter, and in front of all.
constexpr std::array kInserted = {"module",     "_orig_mod",      "_fsdp_wrapped_module", "_checkpoint_wrapped_module",
                                  "base_layer", "original_module"};
constexpr const char* kSavedByPeft = "modules_to_save";
constexpr std::array kWrapped = {"model", "base_model", "net"};
constexpr std::array kContainers = {"ParameterDict", "ParameterList"};
constexpr const char* kWord = "[A-Z]+(?![a-z])|[A-Z]?[a-z]+";

}  // namespace

bool is_number(const std::string& part) { return part.find_first_not_of("0123456789") == std::string::npos; }

std::vector<std::string> parts_of(const std::string& name) {
  std::vector<std::string> parts;
  std::istringstream stream(name);
  for (std::string part; std::getline(stream, part, '.');) parts.push_back(part);
  return parts;
}

std::vector<std::string> path_of(const std::string& name) {
  const std::vector<std::string> parts = parts_of(name);
  std::vector<std::string> path;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (parts[i] == kSavedByPeft) {
      ++i;
    } else if (!contains(kInserted, parts[i])) {
      path.push_back(parts[i]);
    }
  }
  while (path.size() > 1 && contains(kWrapped, path.front())) path.erase(path.begin());
  return path;
}

std::vector<std::string> words_of(const std::string& part) {
  static const std::regex word(kWord);
  std::vector<std::string> words;
  for (std::sregex_iterator found(part.begin(), part.end(), word), end; found != end; ++found) {
    words.push_back(lower(found->str()));
  }
  return words;
}

std::vector<std::string> keys_of(const Module& owner, const Parameter& parameter) {
  std::vector<std::string> keys;
  if (!is_number(parameter.key)) keys.push_back(parameter.key);
  const std::vector<std::string> holders = parts_of(owner.name);
  const bool is_held = is_number(parameter.key) || contains(kContainers, owner.class_name);
  if (is_held && !holders.empty() && !is_number(holders.back())) keys.push_back(holders.back());
  return keys;
}

}  // namespace torchdion::routing
