// What a parameter is, by the module that owns it and by its name.
#pragma once

#include <torch/nn/module.h>
#include <torchdion/optim.h>

#include <array>
#include <string>

namespace torchdion::optim {

enum class Kind { matrix, convolution, fused, stack, transposed, embedding, vector, head };
inline constexpr std::array kKinds = {Kind::matrix,     Kind::convolution, Kind::fused,  Kind::stack,
                                      Kind::transposed, Kind::embedding,   Kind::vector, Kind::head};  // of the groups

// All but the head. module_name: the owner's in the model; key: the parameter's in its owner.
Kind kind_of(const torch::nn::Module& owner, const std::string& module_name, const std::string& key,
             const at::Tensor& param);

// The options of the matrices of a kind.
DionOptions with_form(Kind kind, DionOptions options);

}  // namespace torchdion::optim
