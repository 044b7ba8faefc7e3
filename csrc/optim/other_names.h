// Keys of state dicts by which others call an option or choose the algorithm of a group:
// python/torchdion/other_names.py and other_muons.py.
#pragma once

#include <string>

#include "optim/options.h"

namespace torchdion::optim {

// Gives the entries of a group that another program saved the options that its keys mean, where it lacks them. own: the
// options of the group that is to have them.
void name_as_here(Entries& saved, const Options& own, const std::string& where);

// Looks at the entries of a loaded group that are no options of ours. Throws c10::ValueError where one asks for another
// algorithm, and warns where one says something else than the option that it is another name of, which holds.
void check_other_names(const Entries& unknown, const Options& options, const std::string& where);

// Gives other names among the entries of a group the values of its options.
void unite_names(Entries& entries);

}  // namespace torchdion::optim
