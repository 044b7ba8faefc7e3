// Gradients as autograd leaves them.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace torchdion::engine {

// Those whose memory does not hold their numbers, from complex views and forward-mode derivatives, become some that
// does.
void materialize(std::vector<at::Tensor>& gradients);

// How many entries of those on a device are NaN or infinite: one number there.
at::Tensor count_nonfinite_on(c10::Device device, const std::vector<at::Tensor>& gradients);

}  // namespace torchdion::engine
