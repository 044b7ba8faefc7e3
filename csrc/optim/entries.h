// What sentences call the values of a state dict: as Python does, whose form of it both languages share.
#pragma once

#include <ATen/core/ivalue.h>

#include <string>

namespace torchdion::optim {

// "str", "NoneType", "list".
std::string kind_of(const c10::IValue& value);

// The value, or no more than its kind where it may be long or of several lines.
std::string entry_text(const c10::IValue& value);

}  // namespace torchdion::optim
