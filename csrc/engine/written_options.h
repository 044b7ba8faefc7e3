// Options that a program has written between steps and that do not do, or not do alone, what their name says.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/parameter.h"

namespace torchdion::engine {

enum class Reason {
  of_others,  // no algorithm of the group has it
  fixed,      // what exists already stays as it is
  kept,       // likewise, and so must the option: it chooses the side of a matrix to which existing states belong
};

struct Remark {
  std::string_view option;
  Reason reason;
  std::string sentence;  // without a prefix
};

// True if factors get their rank by it.
bool is_of_ranks(const algorithms::Option& option);

// About options of a group that are other ones than before; what is missing there says nothing. parameters: of the
// group, with their states. `where` names it: " (parameter group 2)".
std::vector<Remark> remarks_on(const algorithms::Options& before, const algorithms::Options& now,
                               const std::vector<ParameterView>& parameters, const std::string& where);

}  // namespace torchdion::engine
