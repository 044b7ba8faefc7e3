// What the ranks that share parameters agree on before they communicate.
#pragma once

#include <torchdion/optimizer.h>

#include <functional>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "engine/agreement.h"
#include "optim/layouts.h"

namespace torchdion::optim {

// The parameters without a gradient on this rank whose gradient other ranks have: it is zero here, of the dtype there.
using Missing = std::unordered_map<const void*, at::ScalarType>;

// A parameter, the ranks that must hold the same of it, and a hash of what this one does.
struct Common {
  const void* param;
  Axis axis;
  int64_t digest;
};

// What ranks say to each other before they do something together.
struct Handshake {
  engine::Operation operation;
  std::function<void()> check = [] {};  // may throw on this rank alone
  Axis copies = {};                     // ranks that hold copies of everything and take part too, where it is there
  // Called on every rank where some lack gradients of a step that others have; may throw on this rank alone.
  std::function<void(Missing)> provide = {};
  bool compares = false;  // replicas compare what they have in common, which this says:
  std::function<std::vector<Common>()> common = {};
};

// The parameters of which ranks hold unequal copies; none: they found no difference, or did not compare.
using Apart = std::optional<std::unordered_set<const void*>>;

// Waits for the ranks of all layouts, which say what they are about to do and what they take everything for, also
// whether momenta are each replica's own (asked after the check). Where a function of the handshake throws, or a claim
// cannot be made, its error goes on here and is a c10::Error on every other rank. Throws on every rank where they
// differ; see engine::agree().
Apart agree(const Optimizer& optimizer, const Layouts& layouts, const Handshake& handshake,
            const std::function<bool()>& is_decoupled);

}  // namespace torchdion::optim
