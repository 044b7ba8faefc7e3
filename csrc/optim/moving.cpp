// Optimizers that are moved, and what is left of one: it holds nothing, and its methods say so.
#include <c10/util/Type.h>

#include <typeinfo>

#include "optim/private.h"

namespace torchdion {

using Base = torch::optim::Optimizer;

Optimizer::Optimizer(Optimizer&&) noexcept = default;

Optimizer& Optimizer::operator=(Optimizer&& other) noexcept {
  if (this == &other) return *this;
  private_ = std::move(other.private_);  // first: it waits for what the last step has left in flight
  Base::operator=(std::move(other));
  other.param_groups_.clear();
  other.state_.clear();
  return *this;
}

Optimizer::Private& Optimizer::held() const {
  if (private_) return *private_;
  throw c10::Error(c10::str(c10::demangle(typeid(*this).name()),
                            ": an optimizer that was moved from has no parameters; use the one that it was moved to"),
                   nullptr);
}

void Optimizer::zero_grad(bool set_to_none) {
  held();
  Base::zero_grad(set_to_none);
}

torch::optim::OptimizerOptions& Optimizer::defaults() {
  held();
  return Base::defaults();
}

const torch::optim::OptimizerOptions& Optimizer::defaults() const {
  held();
  return Base::defaults();
}

std::vector<at::Tensor>& Optimizer::parameters() {
  held();
  return Base::parameters();
}

const std::vector<at::Tensor>& Optimizer::parameters() const {
  held();
  return Base::parameters();
}

void Optimizer::add_parameters(const std::vector<at::Tensor>& parameters) {
  held();
  Base::add_parameters(parameters);
}

}  // namespace torchdion
