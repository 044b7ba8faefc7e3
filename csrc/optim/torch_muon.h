// State dicts of torch.optim.Muon, as torchdion::Muon's: python/torchdion/torch_muon.py.
#pragma once

#include <ATen/core/Dict.h>

#include <string>

#include "optim/options.h"

namespace torchdion::optim {

// Gives the options of a group that torch.optim.Muon saved the names that they have here, and says whether they are
// such. Throws c10::ValueError for other polynomials than Jordan's and for what torch does not have; `where` says whose
// it is.
bool rename_options_of_torch_muon(Entries& options, const std::string& where);

// A copy of a state of such a group, with the momentum under its name here; says whether it had torch's buffer. That is
// the mean of gradients that M = μ M + G is the sum of: (1 − μ) times ours.
bool rename_state_of_torch_muon(c10::impl::GenericDict& state);

}  // namespace torchdion::optim
