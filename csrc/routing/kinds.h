// What a parameter is, by the module that owns it and by its name: a matrix, in which form, or none.
#pragma once

#include <string>

#include "routing/model.h"

namespace torchdion::routing {

bool is_embedding(const Module& owner, const Parameter& parameter);

// True if weight_norm gave the parameter this name: it holds lengths.
bool is_gain(const std::string& key);

// All but the head, in a model whose layers have been recognized.
Kind kind_of(const Module& owner, const Parameter& parameter);

// The part of a guess that the shape alone decides.
Form form_of(Kind kind, const Module& owner, const Parameter& parameter);

}  // namespace torchdion::routing
