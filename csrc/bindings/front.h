// A Python program's parameters, gradients and states, shown to the engine.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "engine/core.h"

namespace torchdion::bindings {

// An object as it was. Tensors and lists of them are not kept alive; anything else is, so that no other object takes
// its address.
class SeenObject {
 public:
  explicit SeenObject(PyObject* object);
  bool is(PyObject* object) const;

 private:
  PyObject* address_;
  py::object kept_;
  bool is_weak_;
};

// The entries of a dict or a list as they were, in their order.
class SeenContainer {
 public:
  void see(PyObject* container);
  bool is_same(PyObject* container) const;

 private:
  std::vector<SeenObject> items_;
};

struct SeenGroup {
  SeenContainer dict, params;
  bool is_volatile;  // an option is an object whose value may change
};

// A parameter as it was shown.
struct SeenParameter {
  py::object spec;                  // of a DTensor; null: it is none
  std::optional<SeenObject> local;  // likewise
  bool is_complete = false;         // else it was shown without what a step with its gradient needs
  int64_t index = 0;                // that of its view
};

// An optimizer of torchdion.optimizer. What a step depends on is compared with what was there when Python showed it
// last, object by object; where it is another one, Python shows all of it again.
class PythonFront : public engine::Front {
 public:
  // Alive for as long as one of its methods runs, which sets it. The methods below take Python's lock.
  py::handle optimizer;

  void update(engine::Core& core, engine::Operation operation) override;
  engine::GradientScaling scaling() override;
  std::vector<at::Tensor> gradients(const engine::Core& core) override;
  void keep(const engine::ParameterView& view) override;
  void require(const engine::ParameterView& view) override;
  bool opens_groups() const override { return true; }
  void open_groups(const std::vector<Axis>& axes) override;
  void written(const std::vector<const engine::ParameterView*>& views) override;
  void warn(const std::string& sentence) override;

  // Python shows the parameters of each group: first who they are, then all of them.
  void show_parameters(engine::Core& core, const py::list& groups);
  void show_contents(engine::Core& core, const py::list& contents, bool is_volatile);

 private:
  bool has_other_groups() const;
  bool has_other_parameters(const engine::Core& core) const;
  bool has_other_states() const;
  bool read_groups(engine::Core& core);
  void see_groups();

  SeenContainer list_of_groups_;
  std::vector<SeenGroup> groups_;
  std::vector<SeenParameter> parameters_;
  std::vector<std::pair<SeenObject, SeenContainer>> states_;
  bool is_looked_at_ = false;  // else groups are to be looked at in any case
  bool is_shown_ = false;      // else the last attempt failed
  bool is_volatile_ = false;   // something must be shown at each step
};

}  // namespace torchdion::bindings
