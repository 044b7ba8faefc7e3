// What the ranks that share parameters agree on before they communicate.
#pragma once

#include <torchdion/optim.h>

#include <exception>
#include <functional>
#include <unordered_map>

#include "engine/agreement.h"
#include "optim/layouts.h"

namespace torchdion::optim {

// The parameters without a gradient on this rank whose gradient other ranks have: it is zero here, of the dtype there.
using Missing = std::unordered_map<const void*, at::ScalarType>;

// Waits for the ranks of all layouts, which say what they are about to do and what they take everything for, also
// whether momenta are each replica's own (`decoupled`). `refusal`, null where there is none, is why this rank cannot:
// rethrown here, and a c10::Error on every other rank. Throws on every rank where they differ; see engine::agree().
Missing agree(const Dion& optimizer, const Layouts& layouts, engine::Operation operation, bool decoupled,
              const std::exception_ptr& refusal);

// The same for what is no step, after a check that may throw on this rank alone. `copies`, where it is there, are ranks
// that hold copies of everything and take part too.
void begin(
    const Dion& optimizer, const Layouts& layouts, engine::Operation operation, bool decoupled,
    const std::function<void()>& check = [] {}, const Axis& copies = {});

}  // namespace torchdion::optim
