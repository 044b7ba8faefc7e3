// Whole states of parameters, and the pieces that this rank has of them.
#pragma once

#include <torchdion/optimizer.h>

#include "engine/cuts.h"
#include "optim/layouts.h"
#include "optim/owners.h"

namespace torchdion::optim {

// What cuts a state of whole sizes.
engine::Cuts cuts_of(const algorithms::State& state, at::IntArrayRef whole, const at::Tensor& param,
                     const Layout& layout, const engine::GroupOptions& options);

// The whole of all tensors of a state of which every rank gives its piece, or the part that it owns. Waits for the
// others.
ParamState gather_state(const at::Tensor& param, const ParamState& state, const Layout& layout, const Part* part,
                        const engine::GroupOptions& options);

}  // namespace torchdion::optim
