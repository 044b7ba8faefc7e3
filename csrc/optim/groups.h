// The parameter groups of an optimizer: how sentences name them, what is asked of their parameters, and of all of them
// together.
#pragma once

#include <torchdion/optimizer.h>

#include <cstdint>
#include <string>
#include <vector>

#include "engine/groups.h"

namespace torchdion::optim {

using ParamGroups = std::vector<torch::optim::OptimizerParamGroup>;

// " (parameter group 2)", " (parameter group 2 of the state dict)"; whose: kOfStateDict, of the second.
std::string group_name(std::size_t index, const std::string& whose = "");
inline constexpr char kOfStateDict[] = " of the state dict";
// The entry of a saved group that says whose parts its states are.
inline constexpr auto kOwnedBy = "owned_by";

// Throws c10::ValueError for those of another optimizer.
const Options& options_of(const torch::optim::OptimizerParamGroup& group, std::size_t index);

// What holds for the whole optimizer is what its first group says.
const Options& first_options(const ParamGroups& groups, const Options& defaults);

Options with_algorithm(Options options, const std::string& algorithm);
// Groups as the optimizer keeps them: without parameters that are given again, and each with an algorithm.
ParamGroups resolved(const ParamGroups& given, const std::string& algorithm);

// The options of each group. Throws c10::ValueError with one sentence for what no step could use: an option, a
// parameter, one that is given twice.
std::vector<engine::GroupOptions> checked(const ParamGroups& groups, const Options& defaults,
                                          const std::string& whose = "");
// Throws c10::ValueError where the first group has another option of the whole optimizer than its defaults ask for.
void check_asked_of_optimizer(const ParamGroups& groups, const Options& defaults);
// Throws c10::ValueError where groups that share the tensor of a rate were given different numbers.
void check_shared_rates(const ParamGroups& groups);

// Throws c10::ValueError or c10::NotImplementedError with one sentence for a parameter that no algorithm can update,
// unless it is left alone; `name` is its name there.
void check_parameter(const at::Tensor& param, const engine::GroupOptions& options, const std::string& name);

// Warns of a parameter of three dimensions whose group, which has an algorithm, does not say what the first one counts.
void warn_of_a_likely_stack(const at::Tensor& param, const Options& options, const std::string& name);

// Throws c10::ValueError for a state that another optimizer's code has put there.
const ParamState& ours(const torch::optim::OptimizerParamState& state);

}  // namespace torchdion::optim
