// The layouts that a program gave to parameters.
#pragma once

#include <torchdion/layout.h>
#include <torchdion/optimizer.h>

#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/loaded_state.h"

namespace torchdion::optim {

using Layouts = std::unordered_map<const void*, Layout>;  // by a parameter's TensorImpl

// Throws c10::ValueError with one sentence for a layout that no algorithm can follow, or that the tensor, which must be
// this rank's piece, does not have.
void check_layout(const at::Tensor& param, const Layout& layout, const engine::GroupOptions& options,
                  const std::string& name);

// Says of each tensor of a saved state whether it is whole or this rank's piece, and of what: its shape alone tells.
// options: of the parameter's group. Throws c10::ValueError for one that is neither.
void tell_pieces(std::vector<engine::SavedTensor>& saved, const engine::ParameterView& view,
                 const algorithms::Options& options);

// What the axes of all layouts have carried, by their names.
std::map<std::string, AxisTraffic> traffic_of(const Layouts& layouts);

}  // namespace torchdion::optim
