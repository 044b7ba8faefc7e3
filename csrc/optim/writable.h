// What a state dict and a checkpoint may hold, and the form in which every reader takes it.
#pragma once

#include <ATen/core/ivalue.h>

#include <string>

namespace torchdion::optim {

// Refuses containers that hold themselves or are nested too deep, which walks of their values would never leave. Visits
// each once. Throws c10::ValueError: `what`, such as "torchdion::Dion: the state dict", holds itself or is nested too
// deep.
void check_nesting(const c10::IValue& value, const std::string& what);

// The same value of lists and dicts that hold anything: a pickle would build those of one type by functions that
// torch.load(weights_only=True) refuses to call. Throws c10::Error, the reason, for what is no tensor with memory,
// number, string or container of them. No container holds itself (check_nesting()).
c10::IValue writable(const c10::IValue& value);

}  // namespace torchdion::optim
