// What an optimizer holds beside what every torch::optim::Optimizer does.
#pragma once

#include <string>
#include <vector>

#include "engine/core.h"
#include "optim/front.h"
#include "optim/layouts.h"
#include "optim/options.h"
#include "optim/written_options.h"
#include "words.h"

namespace torchdion {

struct Optimizer::Private {
  std::string algorithm, title;  // of groups that name none; of the class, as sentences call it
  optim::Layouts layouts;
  std::vector<optim::SaidOptions> said;  // of each group, at the last step
  std::vector<optim::Entries> unknown;   // of each group that was loaded: the entries that are no options of ours
  optim::Seen seen;                      // by the core
  engine::Core core;

  // As sentences speak while a method runs. The optimizer must outlive them.
  Words words(const Optimizer& optimizer) const;
  // What the core sees of it. What a look at groups obeys is written into them, whichever method looks.
  optim::Front front(const Optimizer& optimizer) { return {const_cast<Optimizer&>(optimizer), layouts, said, seen}; }
  void step(const Optimizer& optimizer);
};

}  // namespace torchdion
