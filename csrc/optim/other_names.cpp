#include "optim/other_names.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
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

AskedFor choice_among(const std::string& name, const auto& is_allowed) {
  AskedFor choice{{}, name};
  for (const algorithms::Algorithm* algorithm : algorithms::all()) {
    if (is_allowed(*algorithm)) choice.allowed.push_back(algorithm->name);
  }
  return choice;
}

// Keys that name a rule, the key of a label that may begin with one, and flags.
constexpr std::array kRules = {"optim_type", "optimizer_type", "optimizer", "optim"};
constexpr const char* kLabel = "kind";
constexpr std::array kFlagsOfMuon = {"use_muon", "is_muon"};
constexpr std::array kFlagsOfAdam = {"use_adam", "use_adamw"};

// Rules that there are elsewhere, and not here: torch's own, and those that trainers have beside a Muon.
constexpr std::array kElsewhere = {"adadelta", "adafactor", "adagrad", "adamax", "asgd",       "lbfgs",    "nadam",
                                   "radam",    "rmsprop",   "rprop",   "sgd",    "sparseadam", "ademamix", "adopt",
                                   "came",     "galore",    "kron",    "lamb",   "lars",       "mars",     "prodigy",
                                   "psgd",     "scion",     "shampoo", "soap",   "sophia",     "splus",    "tiger"};

bool is_among(const auto& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char letter) { return std::tolower(letter); });
  return text;
}

std::string joined(std::string text) {
  text.erase(std::remove_if(text.begin(), text.end(), [](char letter) { return letter == '_' || letter == '-'; }),
             text.end());
  return text;
}

// The algorithm that a text in small letters names; null: none of ours.
const algorithms::Algorithm* named_by(const std::string& text) {
  std::string name = joined(text);
  if (name == "adam") name = "adamw";
  if (name == "nordion2") name = "dion3";
  for (const algorithms::Algorithm* algorithm : algorithms::all()) {
    if (joined(std::string(algorithm->name)) == name) return algorithm;
  }
  return nullptr;
}

AskedFor choice_of(const algorithms::Algorithm& named) {
  return named.name == "muon" ? muon_choice() : AskedFor{{named.name}, std::string(named.name)};
}

AskedFor asked_by(const std::string& key, const c10::IValue& value, const std::string& where) {
  if (value.isNone()) return {};
  if (is_among(kFlagsOfMuon, key) || is_among(kFlagsOfAdam, key)) {
    TORCH_CHECK_VALUE(value.isBool(), prefix(), key, " must be True or False, got ", entry_text(value), where);
    if (is_among(kFlagsOfAdam, key)) {
      const auto is_adam = [&](const algorithms::Algorithm& one) { return (one.name == "adamw") == value.toBool(); };
      return choice_among(value.toBool() ? "adamw" : "muon", is_adam);
    }
    if (value.toBool()) return muon_choice();
    return choice_among("adamw", [](const algorithms::Algorithm& one) { return !one.takes_matrices(); });
  }
  const std::string text = value.isString() ? lower(value.toStringRef()) : "";
  const algorithms::Algorithm* named = named_by(text);
  if (named) return choice_of(*named);
  if (key == kLabel && !is_among(kElsewhere, text)) return {};
  std::string known = "'adam'";
  for (const algorithms::Algorithm* algorithm : algorithms::all()) known += c10::str(", '", algorithm->name, "'");
  TORCH_CHECK_VALUE(false, prefix(), key, " must be one of ", known, ", got ", entry_text(value), where);
}

// Refuses a label such as "adam8bit" that begins with the name of another rule than the group's.
void refuse_label_of_another_rule(const c10::IValue& label, const std::string& algorithm, const std::string& where) {
  if (!label.isString()) return;
  const std::string text = lower(label.toStringRef());
  const auto at = [&](std::size_t k) { return static_cast<unsigned char>(text[k]); };
  // The name ends where no letter follows: "lambda" is not LAMB. The longest one counts: "dion2_heads" is not Dion's.
  for (std::size_t end = text.size(); end > 0; --end) {
    if (!std::isalnum(at(end - 1)) || (end < text.size() && std::isalpha(at(end)))) continue;
    const std::string begin = text.substr(0, end);
    const algorithms::Algorithm* named = named_by(begin);
    if (!named && !is_among(kElsewhere, begin)) continue;
    const AskedFor choice = named ? choice_of(*named) : AskedFor{};
    TORCH_CHECK_VALUE(is_among(choice.allowed, algorithm), prefix(), kLabel, "=", entry_text(label), " says '", begin,
                      "', got algorithm='", algorithm, "'", where, "; name the algorithm, or another label");
    return;
  }
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
  const auto check = [&](const char* key) {
    const auto found = unknown.find(key);
    if (found == unknown.end()) return;
    const AskedFor choice = asked_by(key, found->second, where);
    TORCH_CHECK_VALUE(choice.allowed.empty() || is_among(choice.allowed, options.algorithm()), prefix(), key, "=",
                      entry_text(found->second), " means algorithm='", choice.name, "', got algorithm='",
                      options.algorithm(), "' too", where);
    if (key == kLabel) refuse_label_of_another_rule(found->second, options.algorithm(), where);
  };
  std::for_each(kRules.begin(), kRules.end(), check);
  check(kLabel);
  std::for_each(kFlagsOfMuon.begin(), kFlagsOfMuon.end(), check);
  std::for_each(kFlagsOfAdam.begin(), kFlagsOfAdam.end(), check);
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
