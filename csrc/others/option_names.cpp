#include "others/option_names.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "algorithms/all.h"
#include "others/rules.h"
#include "words.h"

namespace torchdion::others {

namespace {

// The option that a key means in a group; empty: none, or it is an option itself.
std::string option_meant(const OtherName& name, const Entries& group) {
  const std::string own = text_of(group, "algorithm"), scalar = text_of(group, "scalar_algorithm");
  const auto has = [&](std::string_view option) { return algorithms::group_has_option(own, scalar, option); };
  if (algorithms::option(name.key) && has(name.key)) return {};
  // NorMuon's, in its authors' groups.
  if (name.key == "beta2" && has("muon_beta2") && asks_for_muon(group)) return "muon_beta2";
  const auto found = std::find_if(name.options.begin(), name.options.end(), has);
  return found == name.options.end() ? std::string() : std::string(*found);
}

// A key of a group and the option that it means.
struct TwoNames {
  const OtherName& name;
  std::string option;

  bool is_beta() const { return option == "betas"; }

  // What the option is, as the key would say it.
  c10::IValue own(const Entries& group) const {
    const c10::IValue value = entry(group, option);
    if (!is_beta()) return value;
    const std::vector<c10::IValue> betas = items_of(value);
    return name.place < betas.size() ? betas[name.place] : c10::IValue();
  }

  std::string contradiction(const Entries& group, const std::string& where) const {
    const std::string value = entry_text(group.at(name.key));
    const std::string place = is_beta() ? c10::str("[", name.place, "]") : "";
    return c10::str(name.key, "=", value, " means ", option, place, "=", value, ", got ", option, "=",
                    entry_text(entry(group, option)), " too", where);
  }

  // Gives the option what the key says.
  void obey(Entries& group, const std::string& where) const {
    const c10::IValue value = group.at(name.key);
    if (is_beta()) {
      TORCH_CHECK_VALUE(is_share(value), prefix(), name.key, " must be in [0, 1), got ", entry_text(value), where);
      std::vector<c10::IValue> betas = items_of(entry(group, option));
      if (name.place >= betas.size()) return;  // of what is no pair, and refused as such
      betas[name.place] = *number_of(value);
      group[option] = c10::ivalue::Tuple::create(betas);
    } else {
      const std::string given_as =
          where.empty() ? where : c10::str(where.substr(0, where.size() - 1), ", given as '", name.key, "')");
      checked(*algorithms::option(option), value, given_as);
      group[option] = value;
    }
  }
};

void resolve_betas(Entries& group) {
  const bool has_beta = !entry(group, "beta1").isNone() || !entry(group, "beta2").isNone();
  if (!has_beta || !entry(group, "betas").isNone()) return;
  const auto [first, second] = algorithms::betas_of(text_of(group, "algorithm"), text_of(group, "scalar_algorithm"));
  group["betas"] = c10::ivalue::Tuple::create(first, second);
}

}  // namespace

const std::vector<OtherName>& other_names() {
  static const std::vector<OtherName> names{
      {"momentum", {"mu", "ef_decay"}},    {"mu", {"ef_decay"}},    {"eps", {"epsilon"}},    {"wd", {"weight_decay"}},
      {"oversample", {"rcqr_oversample"}}, {"beta1", {"betas"}, 0}, {"beta2", {"betas"}, 1},
  };
  return names;
}

United unite_names(Entries& group, const std::set<std::string>& written, bool refuses, const std::string& where) {
  resolve_betas(group);
  United united;
  std::vector<TwoNames> pairs, obeyed;
  for (const OtherName& name : other_names()) {
    if (entry(group, name.key).isNone()) continue;
    const TwoNames pair{name, option_meant(name, group)};
    if (pair.option.empty()) continue;
    united.meant.emplace(name.key, pair.option);
    pairs.push_back(pair);
    if (is_same(group.at(name.key), pair.own(group))) continue;
    const bool is_written = written.contains(name.key), is_option_written = written.contains(pair.option);
    if (is_written && !is_option_written) obeyed.push_back(pair);
    // An option of ours that others have by its name too has its default where nobody wrote it.
    if (is_written != is_option_written || (!is_written && algorithms::option(name.key))) continue;
    const std::string sentence = pair.contradiction(group, where);
    TORCH_CHECK_VALUE(!refuses, prefix(), sentence);
    united.contradictions.emplace(
        name.key, c10::str(sentence, "; ", pair.option, "=", entry_text(entry(group, pair.option)), " holds"));
  }
  for (const TwoNames& pair : obeyed) pair.obey(group, where);
  for (const TwoNames& pair : pairs) {
    const c10::IValue own = pair.own(group);
    if (!is_same(group.at(pair.name.key), own)) group[pair.name.key] = own;
  }
  return united;
}

void name_as_here(Entries& saved, const Entries& own, const std::string& where) {
  std::set<std::string> written;
  for (const auto& [key, value] : saved) {
    if (!value.isNone()) written.insert(key);
  }
  saved.insert(own.begin(), own.end());
  unite_names(saved, written, /*refuses=*/true, where);
  saved.erase("scalar_algorithm");  // by which groups of ours are known
}

}  // namespace torchdion::others
