// A LibTorch program's parameters, gradients and states, shown to the engine.
#pragma once

#include <torchdion/optimizer.h>

#include <string>
#include <vector>

#include "engine/front.h"
#include "optim/layouts.h"
#include "optim/written_options.h"

namespace torchdion::optim {

// A group's parameters, without states. index: of the first among all of the optimizer.
engine::ParameterGroup to_core(const torch::optim::OptimizerParamGroup& group, std::size_t group_index, int64_t index,
                               const engine::GroupOptions& options, const Layouts& layouts);
engine::ParameterState to_core(const ParamState& state);
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
