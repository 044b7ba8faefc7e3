// What a checkpoint may hold, in the form in which every reader takes it.
#pragma once

#include <ATen/core/ivalue.h>

namespace torchdion::optim {

// The same value of lists and dicts that hold anything: a pickle would build those of one type by functions that
// torch.load(weights_only=True) refuses to call. Throws c10::Error, the reason, for what is no tensor with memory,
// number, string or container of them. No container holds itself (check_nesting()).
c10::IValue writable(const c10::IValue& value);

}  // namespace torchdion::optim
