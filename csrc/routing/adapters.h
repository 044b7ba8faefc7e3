// What the parameters of adapters are: PEFT's, loralib's and torchtune's names for them.
#pragma once

#include <optional>

#include "routing/model.h"

namespace torchdion::routing {

// None: no adapter calls a parameter so.
std::optional<Kind> kind_of_adapter(const Module& owner, const Parameter& parameter);

}  // namespace torchdion::routing
