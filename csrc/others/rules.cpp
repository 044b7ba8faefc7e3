#include "others/rules.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>

#include "algorithms/all.h"
#include "words.h"

namespace torchdion::others {

namespace {

using algorithms::Algorithm;

// Of nanochat, and our own groups: the name of a rule, or the kind of the parameters, which may begin with one.
constexpr const char* kLabel = "kind";

// Rules that there are elsewhere, and not here: torch's own, and those that trainers have beside a Muon.
constexpr std::array kElsewhere = {"adadelta", "adafactor", "adagrad", "adamax", "asgd",       "lbfgs",    "nadam",
                                   "radam",    "rmsprop",   "rprop",   "sgd",    "sparseadam", "ademamix", "adopt",
                                   "came",     "galore",    "kron",    "lamb",   "lars",       "mars",     "prodigy",
                                   "psgd",     "scion",     "shampoo", "soap",   "sophia",     "splus",    "tiger"};

bool is_among(const auto& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// The algorithms that do what a key asks for, and the one that it means where the group and the optimizer have none of
// these.
struct AskedFor {
  std::vector<std::string_view> allowed;
  std::string_view name;

  bool allows(std::string_view algorithm) const { return is_among(allowed, algorithm); }
};

AskedFor asked_by_name(const Algorithm& named) {
  if (named.name == "muon") return {{"muon", "normuon"}, "muon"};
  return {{named.name}, named.name};
}

std::string without_joints(std::string text) {
  std::erase_if(text, [](char letter) { return letter == '_' || letter == '-'; });
  return text;
}

// The algorithm that a text in small letters names; null: none of ours.
const Algorithm* named_by(const std::string& text) {
  std::string name = without_joints(text);
  if (name == "adam") name = "adamw";
  if (name == "nordion2") name = "dion3";
  for (const Algorithm* algorithm : algorithms::all()) {
    if (without_joints(std::string(algorithm->name)) == name) return algorithm;
  }
  return nullptr;
}

// In small letters: a text, or the name of an optimizer's class; empty: the value has none.
std::string name_in(const c10::IValue& value) {
  const Foreign* object = as_foreign(value);
  std::string text = object ? object->name() : value.isString() ? value.toStringRef() : "";
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char letter) { return std::tolower(letter); });
  return text;
}

// None: the value asks for no rule.
std::optional<AskedFor> asked_by(const std::string& key, const c10::IValue& value, const std::string& where) {
  if (value.isNone()) return std::nullopt;
  const bool is_of_adam = key.starts_with("use_adam");
  if (is_of_adam || key.ends_with("_muon")) {
    const std::optional<double> flag = number_of(value);
    TORCH_CHECK_VALUE(flag == 0. || flag == 1., prefix(), key, " must be True or False, got ", entry_text(value),
                      where);
    if (flag == 1.) return asked_by_name(algorithms::algorithm(is_of_adam ? "adamw" : "muon"));
    AskedFor asked{{}, is_of_adam ? "muon" : "adamw"};
    for (const Algorithm* one : algorithms::all()) {
      if (is_of_adam ? one->name != "adamw" : !one->takes_matrices()) asked.allowed.push_back(one->name);
    }
    return asked;
  }
  const std::string text = name_in(value);
  if (const Algorithm* named = named_by(text)) return asked_by_name(*named);
  if (key == kLabel && !is_among(kElsewhere, text)) return std::nullopt;
  std::string known = "'adam'";
  for (const Algorithm* algorithm : algorithms::all()) known += c10::str(", '", algorithm->name, "'");
  TORCH_CHECK_VALUE(false, prefix(), key, " must be one of ", known, ", got ", entry_text(value), where);
}

// Refuses a label such as "adam8bit" that begins with the name of another rule than the group's.
void refuse_label_of_another_rule(const c10::IValue& label, const std::string& algorithm, const std::string& where) {
  const std::string text = name_in(label);
  const auto at = [&](std::size_t k) { return static_cast<unsigned char>(text[k]); };
  // The name ends where no letter follows: "lambda" is not LAMB. The longest one counts: "dion2_heads" is not Dion's.
  for (std::size_t end = text.size(); end > 0; --end) {
    if (!std::isalnum(at(end - 1)) || (end < text.size() && std::isalpha(at(end)))) continue;
    const std::string begin = text.substr(0, end);
    const Algorithm* named = named_by(begin);
    if (!named && !is_among(kElsewhere, begin)) continue;
    TORCH_CHECK_VALUE(named && asked_by_name(*named).allows(algorithm), prefix(), kLabel, "=", entry_text(label),
                      " says '", begin, "', got algorithm='", algorithm, "'", where,
                      "; name the algorithm, or another label");
    return;
  }
}

}  // namespace

const std::vector<std::string>& selectors() {
  // Names of trainers that mix rules, the label, flags of KellerJordan/Muon, NorMuon, ms-swift and others.
  static const std::vector<std::string> keys{"optim_type", "optimizer_type", "optimizer", "optim",    kLabel,
                                             "use_muon",   "is_muon",        "use_adam",  "use_adamw"};
  return keys;
}

std::string chosen_algorithm(const Entries& group, const std::string& own, const std::string& preferred, bool is_named,
                             const std::string& where) {
  std::string chosen = own;
  for (const std::string& key : selectors()) {
    const std::optional<AskedFor> asked = asked_by(key, entry(group, key), where);
    if (!asked) continue;
    if (!asked->allows(chosen)) {
      const std::string means =
          c10::str(prefix(), key, "=", entry_text(group.at(key)), " means algorithm='", asked->name, "'");
      TORCH_CHECK_VALUE(!is_named, means, ", got algorithm='", chosen, "' too", where);
      const bool is_preferred = asked->allows(preferred);
      const bool is_beside =
          algorithms::algorithm(preferred).takes_matrices() && !algorithms::algorithm(asked->name).takes_matrices();
      TORCH_CHECK_VALUE(is_preferred || is_beside, means, ", and the optimizer's own is '", preferred, "'", where,
                        "; leave ", key, " out, or name the algorithm");
      chosen = is_preferred ? preferred : std::string(asked->name);
    }
    is_named = true;
  }
  refuse_label_of_another_rule(entry(group, kLabel), chosen, where);
  return chosen;
}

bool asks_for_muon(const Entries& group) {
  return std::any_of(selectors().begin(), selectors().end(), [&](const std::string& key) {
    const std::optional<AskedFor> asked = asked_by(key, entry(group, key), "");
    return asked && asked->allowed == asked_by_name(algorithms::algorithm("muon")).allowed;
  });
}

}  // namespace torchdion::others
