// Parameters of adapters, recognized by PEFT's, loralib's and torchtune's names.
#pragma once

#include <optional>

#include "routing/model.h"

namespace torchdion::routing {

// None: no adapter calls a parameter so.
std::optional<Kind> kind_of_adapter(const Module& owner, const Parameter& parameter);

}  // namespace torchdion::routing
