#include "checkpoint.h"

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <torchdion/checkpoint.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <regex>
#include <vector>

#include "problem.h"

namespace gpt {

namespace {

namespace fs = std::filesystem;

const std::regex kWhole(R"(checkpoint-\d{8,}\.pt)");
const std::regex kUnfinished(R"(checkpoint-\d{8,}\.pt\..*)");

std::vector<fs::path> files(const fs::path& folder, const std::regex& name) {
  std::vector<fs::path> found;
  if (!fs::is_directory(folder)) return found;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (std::regex_match(entry.path().filename().string(), name)) found.push_back(entry.path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

c10::impl::GenericDict to_dict(Recipe recipe) {
  c10::impl::GenericDict dict(c10::StringType::get(), c10::AnyType::get());
  dict.insert("vocab", kVocabulary);
  for (const Field& field : fields(recipe)) {
    std::visit([&](auto* value) { dict.insert(field.name, *value); }, field.value);
  }
  return dict;
}

}  // namespace

std::optional<std::string> newest_checkpoint(const std::string& folder) {
  const std::vector<fs::path> found = files(folder, kWhole);
  return found.empty() ? std::nullopt : std::optional(found.back().string());
}

void save_checkpoint(const std::string& folder, int64_t step, c10::impl::GenericDict state, Recipe recipe,
                     int64_t fingerprint) {
  state.insert("recipe", to_dict(recipe));
  state.insert("data", fingerprint);
  char name[64];
  std::snprintf(name, sizeof name, "checkpoint-%08lld.pt", static_cast<long long>(step));
  const fs::path path = fs::path(folder) / name;
  torchdion::write_checkpoint(state, path.string());
  for (const fs::path& old : files(folder, kWhole)) {
    if (old != path) fs::remove(old);
  }
}

c10::impl::GenericDict load_checkpoint(const std::string& path) {
  try {
    const c10::impl::GenericDict state = torchdion::read_checkpoint(path).toGenericDict();
    for (const char* key : {"step", "model", "optimizer", "random"}) state.at(key);
    recipe_of(state);
    fingerprint_of(state);
    return state;
  } catch (const std::exception&) {
    throw Problem(path + " is damaged or no checkpoint of this program; --overwrite starts the run afresh");
  }
}

Recipe recipe_of(const c10::impl::GenericDict& state) {
  Recipe recipe;
  const c10::impl::GenericDict saved = state.at("recipe").toGenericDict();
  for (const Field& field : fields(recipe)) {
    std::visit([&](auto* value) { *value = saved.at(field.name).to<std::decay_t<decltype(*value)>>(); }, field.value);
  }
  return recipe;
}

int64_t fingerprint_of(const c10::impl::GenericDict& state) { return state.at("data").toInt(); }

void prepare_folder(const std::string& folder, bool afresh) {
  fs::create_directories(folder);
  for (const fs::path& path : files(folder, kUnfinished)) fs::remove(path);
  if (!afresh) return;
  for (const fs::path& path : files(folder, kWhole)) fs::remove(path);
}

}  // namespace gpt
