// A LibTorch program's parameters, gradients and states, shown to the engine, and what an optimizer holds beside what
// every torch::optim::Optimizer does.
#pragma once

#include <torchdion/optimizer.h>

#include <string>
#include <vector>

#include "engine/core.h"
#include "one_sentence.h"
#include "optim/layouts.h"
#include "optim/options.h"
#include "optim/written_options.h"
#include "words.h"

namespace torchdion::optim {

// The parameters of all groups, without options and states.
std::vector<engine::ParameterGroup> to_core(const ParamGroups& groups, const Layouts& layouts);
// Gives a program what the engine has made of a parameter's state.
void write_state(const engine::ParameterView& view, ParamState& state);

// A parameter's state as it was shown last.
struct SeenState {
  const ParamState* state = nullptr;  // null: there was none
  uint64_t version = 0;
};

// A front remembers this between the calls of an optimizer's methods.
struct Seen {
  std::vector<std::vector<const void*>> params;  // of each group, their TensorImpl
  std::vector<SeenState> states;                 // of all parameters
};

class Front : public engine::Front {
 public:
  Front(Optimizer& optimizer, const Layouts& layouts, std::vector<SaidOptions>& said, Seen& seen)
      : optimizer_(optimizer), layouts_(layouts), said_(said), seen_(seen) {}

  void update(engine::Core& core, engine::Operation operation) override;
  std::vector<at::Tensor> gradients(const engine::Core& core) override;
  void keep(const engine::ParameterView& view) override;
  void warn(const std::string& sentence) override;

 private:
  bool has_other_parameters() const;

  Optimizer& optimizer_;
  const Layouts& layouts_;
  std::vector<SaidOptions>& said_;
  Seen& seen_;
};

}  // namespace torchdion::optim

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

  // Runs a method with what the optimizer holds and its front: sentences are its own, and an error is one.
  template <class Method>
  static decltype(auto) run(const Optimizer& optimizer, const Method& method) try {
    Private& held = optimizer.held();
    const Speaking speaking(held.words(optimizer));
    optim::Front front = held.front(optimizer);
    return method(held, front);
  } catch (const c10::Error&) {
    rethrow_in_one_sentence();
  }
};

}  // namespace torchdion
