// What ranks must agree on before they communicate: a disagreement is an error on all of them, not a hang.
#pragma once

#include <torchdion/layout.h>

#include <string>
#include <utility>
#include <vector>

namespace torchdion::engine {

// What any of the ranks says before a step.
struct Opening {
  bool refused = false;    // it cannot take the step
  bool is_new = false;     // it has not compared yet what ranks take the parameters for
  bool is_uneven = false;  // it has gradients that others have not, or the reverse
};

// One message of fixed size along each axis, so that ranks which disagree get an answer too. has_gradient[i] belongs to
// the parameter that axes[i] cut; `others` are axes of ranks that are to know. Waits for the ranks of all these.
Opening open_step(Opening own, const std::vector<bool>& has_gradient, const std::vector<std::vector<Axis>>& axes,
                  const std::vector<Axis>& others);

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
