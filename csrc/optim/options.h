// What the options of a group may be, and their form in a state dict.
#pragma once

#include <ATen/core/ivalue.h>
#include <torchdion/optim.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace torchdion::optim {

using Entries = std::map<std::string, c10::IValue>;

// Throws c10::ValueError for the first option outside its range; `where` says whose it is: " (parameter group 2)".
void check_options(const DionOptions& options, const std::string& where);

// The learning rate and the weight decay as plain numbers; waits for the device of a tensor.
double lr_of(const DionOptions& options);
double weight_decay_of(const DionOptions& options);

// Lion's or AdamW's betas: the group's own, or the algorithm's.
DionOptions::Betas betas_of(const DionOptions& options);

// Their names and values in the words of C++.
std::vector<std::pair<std::string, std::string>> shown_options(const DionOptions& options);

// The entries that Python's groups have.
Entries to_entries(const DionOptions& options);
// Sets the options that `entries` has and checks them. Returns the entries that are no options of ours.
Entries from_entries(Entries entries, DionOptions& options, const std::string& where);

// An entry in an error: its value, or no more than its kind where that may be long or of several lines.
std::string entry_text(const c10::IValue& entry);

}  // namespace torchdion::optim
