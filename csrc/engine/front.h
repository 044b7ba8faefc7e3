// The front of a language shows the core what a program has, and takes what the core makes of it.
#pragma once

#include "engine/agreement.h"
#include "engine/parameter.h"

namespace torchdion::engine {

class Core;

class Front {
 public:
  virtual ~Front() = default;

  // Shows the core what the program has changed since the last time: groups, parameters, layouts, states. Throws for
  // what it refuses; the parameters, and the axes that they lie on, are shown first. operation: that they are shown
  // for.
  virtual void update(Core& core, Operation operation) = 0;
  // Throws for a parameter of which it could not show what a step needs, as nobody needed it: it has no gradient here.
  virtual void require(const ParameterView& /*view*/) {}
  // What a gradient scaler says of all gradients.
  virtual GradientScaling scaling() { return {}; }
  // This rank's pieces of the gradients of all parameters, in their order; undefined: there is none.
  virtual std::vector<at::Tensor> gradients(const Core& core) = 0;
  // Takes what the core has made of a parameter's state.
  virtual void keep(const ParameterView& view) = 0;
  // Gives axes second groups, on all of their ranks at once. False: a program must have done so.
  virtual bool opens_groups() const { return false; }
  virtual void open_groups(const std::vector<Axis>& /*axes*/) {}
  // These were written to.
  virtual void written(const std::vector<const ParameterView*>& /*views*/) {}
  virtual void warn(const std::string& sentence) = 0;
};

}  // namespace torchdion::engine
