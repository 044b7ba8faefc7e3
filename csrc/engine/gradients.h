// Gradients as autograd leaves them.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace torchdion::engine {

// Those whose memory does not hold their numbers, from complex views and forward-mode derivatives, become some that
// does.
void materialize(std::vector<at::Tensor>& gradients);

// How many of their entries are NaN or infinite. Waits for their devices.
int64_t count_nonfinite_in(const std::vector<at::Tensor>& gradients);

}  // namespace torchdion::engine
