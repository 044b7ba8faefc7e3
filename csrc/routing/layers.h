// The layer of a module that is none of torch's by its type: of another package, or of a type that was lost.
#pragma once

#include "routing/model.h"

namespace torchdion::routing {

// Gives modules of Layer::other theirs, where the class or the parameters or else the name of one says it, and layers
// of weights their width.
void recognize_layers(Model& model);

}  // namespace torchdion::routing
