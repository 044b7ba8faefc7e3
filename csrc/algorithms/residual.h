// The residual: the part of the factored matrix that P Rᵀ leaves, where it moves the weights too. And what the update
// takes of R.
#pragma once

#include <torchdion/layout.h>
#include <torchdion/options.h>

#include <optional>
#include <string>

#include "algorithms/option.h"

namespace torchdion::algorithms {

inline constexpr Choice kResidualNames[] = {{"scaled", "scaled", Residual::scaled}, {"sign", "sign", Residual::sign}};
inline constexpr Choices kResidual{"Residual", kResidualNames};
inline constexpr Option kResidualOption{
    "residual",
    {},
    one_of_or_none(kResidual),
    "how what P Rᵀ leaves moves the weights too: over the length of R's smallest columns, or by its signs"};

inline constexpr Choice kRightFactorNames[] = {{"normalized", "normalized", RightFactor::normalized},
                                               {"orthonormal", "orthonormal", RightFactor::orthonormal}};
inline constexpr Choices kRightFactor{"RightFactor", kRightFactorNames};
inline constexpr Option kRightFactorOption{
    "right_factor", std::string_view("normalized"), one_of(kRightFactor),
    "what the update and the next Q take of R: its columns at length 1, or its QR (arXiv 2605.16341)"};

// None also for algorithms without the option.
std::optional<Residual> residual_of(const Options& options);
bool orthonormalizes_right_factor(const Options& options);

// Replicas whose momenta differ would move their weights apart.
void check_residual(bool decoupled, const Options& options, const std::string& name);

}  // namespace torchdion::algorithms
