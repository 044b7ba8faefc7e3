// Keys by which other projects call an option of a group: two names of one thing, of which the last one written holds.
// docs/guides/migrating.md lists them. They stay in the group, since programs read them and ask whether they are there.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "others/entries.h"

namespace torchdion::others {

struct OtherName {
  std::string key;
  std::vector<std::string_view> options;  // that it may mean: the first that an algorithm of the group has
  std::size_t place = 0;                  // of its value in betas
};

const std::vector<OtherName>& other_names();

// The keys of a group that are other names.
struct United {
  std::map<std::string, std::string> meant;           // the option that each key means
  std::map<std::string, std::string> contradictions;  // for each key that says something else, the sentence
};

// Makes the two names of each option in a group the same. An option gets what was written under its other name alone,
// and else the other name what the option has, as where both were written and contradict each other, or neither and yet
// they differ. Configurations leave None where they say nothing.
// group: with checked options of ours. written: its keys that were, since the names were the same. refuses: throws
// c10::ValueError for a contradiction. Throws it for a value that the option may not have; the sentence names both.
United unite_names(Entries& group, const std::set<std::string>& written, bool refuses, const std::string& where);

// Gives a group that an unknown program saved the options that its keys mean. own: the options of the group that is to
// have them, which hold where the saved one has none.
void name_as_here(Entries& saved, const Entries& own, const std::string& where);

}  // namespace torchdion::others
