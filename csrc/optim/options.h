// What the options of a group may be, and their form in a state dict.
#pragma once

#include <torchdion/optimizer.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/groups.h"
#include "others/entries.h"

namespace torchdion::optim {

using others::Entries;

// The options as the engine takes them, with the algorithm's own betas where there are none. Throws c10::ValueError for
// the first option outside its range; `where` says whose it is: " (parameter group 2)".
engine::GroupOptions values_of(const Options& options, const std::string& where);

// The weight decay as a plain number, as get_lr() is; waits for the device of a tensor.
double weight_decay_of(const Options& options);

// Gives the tensors of the options the numbers that were loaded into these.
void write_rates(const Options& options);

// The entries that Python's groups have.
Entries to_entries(const Options& options);
// Sets the options that `entries` has and checks them. Returns the entries that are no options of ours.
Entries from_entries(Entries entries, Options& options, const std::string& where);

// Makes the options of a group those of an algorithm: what only others have is as declared.
void keep_options_of(std::string_view algorithm, Options& options);

}  // namespace torchdion::optim
