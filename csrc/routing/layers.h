// Which layer a module is that is none of torch's own by its type: one of another package, or one whose type is lost.
#pragma once

#include "routing/model.h"

namespace torchdion::routing {

// Gives modules of Layer::other theirs, where the class or the parameters or else the name of one says it, and layers
// of weights their width.
void recognize_layers(Model& model);

}  // namespace torchdion::routing
