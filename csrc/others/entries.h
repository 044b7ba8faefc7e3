// Values of groups and state dicts that nobody has checked yet, and what sentences call them: as Python does, whose
// form of it both languages share.
#pragma once

#include <ATen/core/ivalue.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "algorithms/option.h"

namespace torchdion::others {

using Entries = std::map<std::string, c10::IValue>;

// An object that is no value of a state dict, as a capsule.
struct Foreign : torch::CustomClassHolder {
  virtual std::string shown() const = 0;  // in a sentence
  virtual std::string name() const = 0;   // of the class that it is, or of the optimizer's; empty: it is neither
};

// Null: it is none.
const Foreign* as_foreign(const c10::IValue& value);

// "str", "NoneType", "list".
std::string kind_of(const c10::IValue& value);

// The value, or no more than its kind where it may be long or of several lines.
std::string entry_text(const c10::IValue& value);

// The value of an option as an entry, and back: a text is that of the entry; none where no option has such a value.
c10::IValue to_entry(const algorithms::Value& value);
std::optional<algorithms::Value> value_of(const c10::IValue& entry);
// The value of an option. Throws c10::ValueError for one that it does not take; `where` says whose it is.
algorithms::Value checked(const algorithms::Option& option, const c10::IValue& entry, const std::string& where);

// A number, of which a flag is one.
std::optional<double> number_of(const c10::IValue& value);
// True if it is a number in [0, 1).
bool is_share(const c10::IValue& value);
// The items of a tuple or a list; none of other values.
std::vector<c10::IValue> items_of(const c10::IValue& value);
// True if two values are equal, without waiting for a device: tensors out of the host's reach equal only themselves.
bool is_same(const c10::IValue& one, const c10::IValue& other);

// The entry under a key; None where there is none.
c10::IValue entry(const Entries& entries, const std::string& key);
// "muon"; empty: the entry is no text.
std::string text_of(const Entries& entries, const std::string& key);

}  // namespace torchdion::others
