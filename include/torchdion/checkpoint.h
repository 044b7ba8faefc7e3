// Files that C++ and Python programs share: what one writes, the other reads.
#pragma once

#include <ATen/core/ivalue.h>

#include <string>

namespace torchdion {

// Writes tensors, numbers, strings and containers of them so that Python's torch.load(path, weights_only=True) reads
// them. The file is there whole or not at all, also after a power failure: it is written under a temporary name, to the
// disk, then renamed. Throws c10::Error, whose what() has no backtrace, for what is none of these (sparse tensors,
// those without memory) and, in the system's words, where it cannot be written.
void write_checkpoint(const c10::IValue& value, const std::string& path);

// Reads what write_checkpoint() or Python's torch.save() wrote. The file is not trusted: nothing in it is run,
// checksums are compared where it has them, and time and memory are bounded by its size. Throws c10::Error, whose
// what() has no backtrace, for a file that is missing, damaged, of other objects or nested more than 100 deep.
c10::IValue read_checkpoint(const std::string& path);

}  // namespace torchdion
