// What a parameter is, by the module that owns it and by its name.
#pragma once

#include <torch/nn/module.h>
#include <torchdion/optim.h>

#include <array>
#include <optional>
#include <string>

namespace torchdion::optim {

enum class Kind { matrix, convolution, fused, stack, guessed, transposed, embedding, vector, head };
inline constexpr std::array kKinds = {Kind::matrix,     Kind::convolution, Kind::fused,  Kind::stack, Kind::guessed,
                                      Kind::transposed, Kind::embedding,   Kind::vector, Kind::head};  // of the groups

std::string lower(std::string text);

// The name of a module's class without its namespaces.
std::string class_of(const torch::nn::Module& module);

// All but the head. module_name: the owner's in the model; key: the parameter's in its owner.
Kind kind_of(const torch::nn::Module& owner, const std::string& module_name, const std::string& key,
             const at::Tensor& param);

// How the matrices of a parameter lie in it; alike for all that share a group. That of a guessed kind is by its shape.
struct Form {
  std::optional<int64_t> batch_dims = {};  // none: the group's own
  int64_t blocks = 1;
  bool fan_in_first = false, skip_zero_gradients = false;

  bool operator==(const Form&) const = default;
};

Form form_of(Kind kind, const torch::nn::Module& owner, const std::string& key, const at::Tensor& param);

Options with_form(const Form& form, Options options);

}  // namespace torchdion::optim
