// Whole states of parameters, and the pieces that this rank has of them.
#pragma once

#include <torchdion/optim.h>

#include "optim/layouts.h"

namespace torchdion::optim {

// This rank's piece, a view, of a momentum or variance of the whole parameter.
at::Tensor cut(const at::Tensor& whole, const at::Tensor& param, const Layout& layout, const DionOptions& options);
// The same of a whole Q.
at::Tensor cut_Q(const at::Tensor& whole, const at::Tensor& param, const Layout& layout, const DionOptions& options);

// The whole Q of which every rank gives its piece. Waits for the others.
at::Tensor gather_Q(const at::Tensor& param, const DionParamState& state, const Layout& layout,
                    const DionOptions& options);
// The same of all tensors of a state.
DionParamState gather_state(const at::Tensor& param, const DionParamState& state, const Layout& layout,
                            const DionOptions& options);

}  // namespace torchdion::optim
