// What ranks must agree on before they communicate: a disagreement is an error on all of them, not a hang.
#pragma once

#include <torchdion/layout.h>

#include <string>
#include <utility>
#include <vector>

namespace torchdion::engine {

// The flags, each true where it is on any rank of its axes: flags[i] belongs to axes[i]. Waits for those ranks, which
// call this at the same time with as many flags for the axes that they share.
std::vector<bool> any_of_ranks(std::vector<bool> flags, const std::vector<std::vector<Axis>>& axes);

// What a rank takes one parameter for.
struct Claim {
  std::string name;
  std::vector<std::pair<std::string, std::string>> properties;  // their names and values, the same names for all claims
  std::vector<Axis> axes;                                       // along which ranks must claim the same
};

// Compares the claims of all ranks, one by one along each axis. Throws c10::ValueError on every rank of the axes when
// any two differ; it names the parameter, the property and this rank's value where they are its own.
void check_agreement(const std::vector<Claim>& claims);

}  // namespace torchdion::engine
