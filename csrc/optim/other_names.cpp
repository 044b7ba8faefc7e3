#include "optim/other_names.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cctype>
#include <string_view>
#include <vector>

#include "algorithms/all.h"
#include "optim/entries.h"
#include "words.h"

namespace torchdion::optim {

namespace {

// The options that a key may be: the first that an algorithm of the group has. place: the entry of a pair.
struct OtherName {
  const char* key;
  std::vector<const char*> options;
  int place = -1;
};

const std::vector<OtherName>& other_names() {
  static const std::vector<OtherName> names{
      {"momentum", {"mu", "ef_decay"}},    {"eps", {"epsilon"}},    {"wd", {"weight_decay"}},
      {"oversample", {"rcqr_oversample"}}, {"beta1", {"betas"}, 0}, {"beta2", {"betas"}, 1},
  };
  return names;
}

// The entry under a name; None says nothing, as configurations leave it.
auto said_under(auto& entries, const char* name) {
  const auto found = entries.find(name);
  return found == entries.end() || !found->second.isNone() ? found : entries.end();
}

// Null: no algorithm of the group has one.
const char* option_meant(const OtherName& name, const std::string& algorithm, const std::string& scalar) {
  const algorithms::Algorithm &own = algorithms::algorithm(algorithm), &of_scalars = algorithms::algorithm(scalar);
  for (const char* option : name.options) {
    if (algorithms::has_option(own, option)) return option;
    if (own.takes_matrices() && algorithms::has_option(of_scalars, option)) return option;
  }
  return nullptr;
}

std::string known_algorithm(const Entries& entries, const char* name, const std::string& fallback) {
  const auto found = entries.find(name);
  const bool is_known = found != entries.end() && found->second.isString();
  const std::string text = is_known ? found->second.toStringRef() : fallback;
  const auto& all = algorithms::all();
  const auto is_it = [&](const algorithms::Algorithm* one) { return one->name == text; };
  return std::any_of(all.begin(), all.end(), is_it) ? text : fallback;
}

// The value of an option as the other name says it; none where it is no number.
c10::IValue value_under(const Entries& options, const char* option, int place) {
  const auto found = options.find(option);
  if (found == options.end() || place < 0) return found == options.end() ? c10::IValue() : found->second;
  return found->second.isTuple() ? found->second.toTupleRef().elements()[place] : c10::IValue();
}

bool is_plain_number(const c10::IValue& value) { return value.isDouble() || value.isInt(); }

// The algorithms that do what a key asks for, and the one that it names. None: it asks for nothing.
struct AskedFor {
  std::vector<std::string_view> allowed;
  std::string name;
};

AskedFor muon_choice() { return {{"muon", "normuon"}, "muon"}; }

AskedFor asked_by(const std::string& key, const c10::IValue& value, const std::string& where) {
  if (value.isNone()) return {};
  if (key == "use_muon" || key == "is_muon") {
    TORCH_CHECK_VALUE(value.isBool(), prefix(), key, " must be True or False, got ", entry_text(value), where);
    if (value.toBool()) return muon_choice();
    AskedFor choice{{}, "adamw"};
    for (const algorithms::Algorithm* algorithm : algorithms::all()) {
      if (!algorithm->takes_matrices()) choice.allowed.push_back(algorithm->name);
    }
    return choice;
  }
  if (!value.isString()) return {};
  std::string text;
  for (const char letter : value.toStringRef()) {
    if (letter != '_' && letter != '-') text += static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  }
  if (text == "muon") return muon_choice();
  if (text == "adam") text = "adamw";
  if (text == "nordion2") text = "dion3";
  for (const algorithms::Algorithm* algorithm : algorithms::all()) {
    std::string name(algorithm->name);
    name.erase(std::remove(name.begin(), name.end(), '_'), name.end());
    if (name == text) return {{algorithm->name}, std::string(algorithm->name)};
  }
  return {};
}

}  // namespace

void name_as_here(Entries& saved, const Options& own, const std::string& where) {
  const std::string algorithm = known_algorithm(saved, "algorithm", own.algorithm());
  const std::string scalar = known_algorithm(saved, "scalar_algorithm", own.scalar_algorithm());
  for (const OtherName& name : other_names()) {
    const auto found = said_under(saved, name.key);
    const char* option = found == saved.end() ? nullptr : option_meant(name, algorithm, scalar);
    if (!option || (name.place < 0 && saved.contains(option))) continue;
    if (name.place < 0) {
      saved.emplace(option, found->second);
      continue;
    }
    TORCH_CHECK_VALUE(is_plain_number(found->second), prefix(), name.key, " must be in [0, 1), got ",
                      entry_text(found->second), where);
    if (!saved.contains("betas")) saved["betas"] = to_entries(own).at("betas");
    if (!saved["betas"].isTuple()) continue;  // which is refused, or none
    std::vector<c10::IValue> pair = saved["betas"].toTupleRef().elements().vec();
    pair[name.place] = found->second;
    saved["betas"] = c10::ivalue::Tuple::create(pair);
  }
}

void check_other_names(const Entries& unknown, const Options& options, const std::string& where) {
  const Entries values = to_entries(options);
  for (const char* key : {"optim_type", "optimizer_type", "optimizer", "optim", "kind", "use_muon", "is_muon"}) {
    const auto found = unknown.find(key);
    if (found == unknown.end()) continue;
    const AskedFor choice = asked_by(key, found->second, where);
    const auto& allowed = choice.allowed;
    if (allowed.empty() || std::find(allowed.begin(), allowed.end(), options.algorithm()) != allowed.end()) continue;
    TORCH_CHECK_VALUE(false, prefix(), key, "=", entry_text(found->second), " means algorithm='", choice.name,
                      "', got algorithm='", options.algorithm(), "' too", where);
  }
  for (const OtherName& name : other_names()) {
    const auto found = said_under(unknown, name.key);
    if (found == unknown.end()) continue;
    const char* option = option_meant(name, options.algorithm(), options.scalar_algorithm());
    if (!option) continue;
    const c10::IValue own = value_under(values, option, name.place);
    const bool is_same = is_plain_number(found->second) && is_plain_number(own) &&
                         found->second.toScalar().toDouble() == own.toScalar().toDouble();
    if (is_same) continue;
    TORCH_WARN(prefix(), name.key, "=", entry_text(found->second), " means ", option, "=", entry_text(found->second),
               ", got ", option, "=", entry_text(own), " too", where, "; ", option, "=", entry_text(own), " holds");
  }
}

void unite_names(Entries& entries) {
  const std::string algorithm = entries.at("algorithm").toStringRef();
  const std::string scalar = entries.at("scalar_algorithm").toStringRef();
  for (const OtherName& name : other_names()) {
    const auto found = said_under(entries, name.key);
    const char* option = found == entries.end() ? nullptr : option_meant(name, algorithm, scalar);
    if (option) found->second = value_under(entries, option, name.place);
  }
}

}  // namespace torchdion::optim
