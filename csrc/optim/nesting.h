// Containers that hold themselves or are nested too deep, which walks of their values would never leave.
#pragma once

#include <ATen/core/ivalue.h>

#include <string>

namespace torchdion::optim {

// Visits each container once. Throws c10::ValueError: `what`, such as "torchdion::Dion: the state dict", holds itself
// or is nested too deep.
void check_nesting(const c10::IValue& value, const std::string& what);

}  // namespace torchdion::optim
