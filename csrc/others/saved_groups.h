// Keys of groups of the dion package (microsoft/dion), and groups and states that it, torch.optim.Muon and
// torch.optim.AdamW have saved, with our names. docs/guides/migrating.md says what becomes of each.
#pragma once

#include <ATen/core/Dict.h>

#include <map>
#include <string>
#include <vector>

#include "others/entries.h"

namespace torchdion::others {

// The sizes of the whole parameters of a group.
using Shapes = std::vector<std::vector<int64_t>>;

// Gives a group our names in the place of the package's: of the algorithm; batch_dims in the place of flatten; blocks
// in that of num_heads and split_sizes. Throws c10::ValueError for a value that has no equal here, or what contradicts
// one of our options.
void rename_keys_of_dion_package(Entries& group, const Shapes& shapes, const std::string& where);

enum class Saver { this_library, torch_muon, torch_adamw, dion_package };

// Gives a saved group the names that its options have here, and says whose it was; keys of a program that is not known
// are obeyed too. shapes, own: of the group that is to have it: its parameters and its options. State of
// torch.optim.AdamW is left as it is where AdamW does not update all of these. Throws c10::ValueError for a value that
// has no equal here.
Saver rename_saved_group(Entries& saved, const Shapes& shapes, const Entries& own, const std::string& where);

// The names that they have for states, and ours.
std::map<std::string, std::string> states_of(Saver saver);

// Gives a copy of the state of such a group our names. Says whether its momentum was the buffer of torch.optim.Muon:
// the mean of gradients that M = μ M + G is the sum of, (1 − μ) times ours.
bool rename_state(c10::impl::GenericDict& state, Saver saver);

}  // namespace torchdion::others
