// The layouts that a program gave to parameters.
#pragma once

#include <torchdion/layout.h>
#include <torchdion/optim.h>

#include <array>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

namespace torchdion::optim {

using Layouts = std::unordered_map<const void*, Layout>;  // by a parameter's TensorImpl

// That of a whole parameter where none was given.
const Layout& layout_of(const Layouts& layouts, const at::Tensor& param);

// An axis that cuts a parameter, and the dimension of the tensor that it cuts.
struct Cut {
  const Axis* axis;
  const char* side;
  int64_t dim;  // -1: the parameter has none
};

std::array<Cut, 3> cuts_of(const at::Tensor& param, const Layout& layout, const DionOptions& options);

// Throws c10::ValueError with one sentence for a layout that no algorithm can follow, or that the tensor, which must be
// this rank's piece, does not have.
void check_layout(const at::Tensor& param, const Layout& layout, const DionOptions& options, const std::string& name);

// Householder QR has no distributed form here: P must have all of its rows on each rank.
void check_orthonormalize(const Layout& layout, Orientation orientation, const DionOptions& options,
                          const std::string& name);

// The sizes of the Q of the whole parameter that this rank's piece was cut from. Throws c10::ValueError where it fits
// none.
std::vector<int64_t> whole_Q(const at::Tensor& param, const at::Tensor& Q, const Layout& layout,
                             const DionOptions& options, const std::string& name);

// What the axes of all layouts have carried, by their names.
std::map<std::string, AxisTraffic> traffic_of(const Layouts& layouts);

}  // namespace torchdion::optim
