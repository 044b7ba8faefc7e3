// Files that C++ and Python programs share: what one writes, the other reads.
#pragma once

#include <ATen/core/ivalue.h>

#include <string>

namespace torchdion {

// Writes tensors, numbers, strings and containers of them so that Python's torch.load(path, weights_only=True) reads
// them. The file is there whole or not at all: it is written under a temporary name, then renamed. Throws c10::Error
// when it cannot be written.
void write_checkpoint(const c10::IValue& value, const std::string& path);

// Reads what write_checkpoint() or Python's torch.save() wrote. Throws c10::Error for a file that is missing, cut short
// or of other objects.
c10::IValue read_checkpoint(const std::string& path);

}  // namespace torchdion
