// The table of all algorithms.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "algorithms/algorithm.h"

namespace torchdion::algorithms {

// In the order in which a step updates their parameters.
std::span<const Algorithm* const> all();

// The algorithm of this name, which must be one.
const Algorithm& algorithm(std::string_view name);

// The options of groups, each once: those that all algorithms have, then each one's own. Groups may have them all.
const std::vector<Option>& options();
// The option of this name; null: there is none.
const Option* option(std::string_view name);
// The names of the states of all algorithms, each once.
const std::vector<std::string_view>& states();

// Whether the option is one of the algorithm, or one that all have.
bool has_option(const Algorithm& algorithm, std::string_view name);
// The same of an algorithm that may update a parameter of a group with these.
bool group_has_option(std::string_view own, std::string_view scalar, std::string_view name);

// The algorithm's options, from values of a group. Where the group has none of an option, it is as declared.
Options options_of(const Algorithm& algorithm, const Options& group);
// The betas of a group of these algorithms that says none.
Pair betas_of(std::string_view own, std::string_view scalar);

// The algorithm that updates a parameter of a group: what does not take its matrices is the group's scalar_algorithm.
const Algorithm& algorithm_of(int64_t dims, const Options& group);
const Algorithm& algorithm_of(int64_t dims, std::string_view own, std::string_view scalar, int64_t batch_dims);

}  // namespace torchdion::algorithms
