// State dicts of torch.optim.Muon, of torch.optim.AdamW and of the dion package, with the names that they have here:
// python/torchdion/other_optimizers.py and dion_package.py.
#pragma once

#include <ATen/core/Dict.h>
#include <c10/util/ArrayRef.h>

#include <string>
#include <vector>

#include "optim/options.h"

namespace torchdion::optim {

enum class Saver { this_library, torch_muon, torch_adamw, dion_package };

// Whose the options of a saved group are, which get the names that they have here. shapes, own: the sizes of the whole
// parameters of the group that is to have them, and its options; state of torch.optim.AdamW is left as it is where
// AdamW does not update all of these. Throws c10::ValueError for a value that has no equal here; `where` says whose it
// is.
Saver rename_options_of_others(Entries& options, const std::vector<at::IntArrayRef>& shapes, const Options& own,
                               const std::string& where);

// A copy of a state of such a group with our names. Says whether its momentum is the buffer of torch.optim.Muon: the
// mean of gradients that M = μ M + G is the sum of, (1 − μ) times ours.
bool rename_state_of_others(c10::impl::GenericDict& state, Saver saver);

}  // namespace torchdion::optim
