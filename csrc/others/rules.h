// Keys by which groups of other projects choose their update rule: use_muon, kind, optim_type and the like. A group
// says by them which algorithm updates it; they stay in it, since programs read them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "others/entries.h"

namespace torchdion::others {

// The keys, the most exact ones first: use_muon=False says only what a rule is not.
const std::vector<std::string>& selectors();

// The algorithm of a group: that which its keys ask for, or its own. preferred: the optimizer's. is_named: the group
// names its own, which no key then changes. Throws c10::ValueError where two keys contradict each other, or where one
// has no equal here; the sentence names both.
std::string chosen_algorithm(const Entries& group, const std::string& own, const std::string& preferred, bool is_named,
                             const std::string& where);

// True if a group that was checked asks for Muon.
bool asks_for_muon(const Entries& group);

}  // namespace torchdion::others
