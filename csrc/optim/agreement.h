// What the ranks that share parameters agree on before a step.
#pragma once

#include <torchdion/optim.h>

#include <exception>
#include <unordered_set>

#include "optim/layouts.h"

namespace torchdion::optim {

// Waits for the ranks of all layouts before each step. `refusal`, null where there is none, is why this rank cannot
// take it: rethrown here, and a c10::Error on every other rank. When any rank has not `agreed` before, compares what
// all of them take each parameter for, and throws c10::ValueError on every rank where they differ. Returns the cut
// parameters that have no gradient on this rank, but on another one: theirs is zero here.
std::unordered_set<const void*> agree(const Dion& optimizer, const Layouts& layouts, bool& agreed,
                                      const std::exception_ptr& refusal);

}  // namespace torchdion::optim
