// The values of a pickle, as torch.save() makes them: tensors, numbers, strings and containers of them. No code is run
// and no name looked up. Whatever the bytes are, time and memory are bounded by a multiple of their number, and what
// comes back is no deeper and, walked as a tree, no larger than a reader must expect.
#pragma once

#include <string_view>

#include "optim/saved_tensor.h"

namespace torchdion::optim {

// Throws c10::Error with the reason why not.
c10::IValue unpickle(std::string_view pickled, const ReadStorage& read_storage);

}  // namespace torchdion::optim
