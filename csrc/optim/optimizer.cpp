#include <ATen/core/grad_mode.h>
#include <c10/util/Type.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <typeinfo>
#include <utility>

#include "engine/shapes.h"
#include "engine/state_owners.h"
#include "one_sentence.h"
#include "optim/front.h"
#include "optim/groups.h"
#include "optim/options.h"
#include "words.h"

namespace torchdion {

using Base = torch::optim::Optimizer;
using optim::options_of;
using torch::optim::OptimizerParamGroup;

namespace {

// The number of a parameter's group, and its own there; none: it is of no group.
std::optional<std::pair<std::size_t, std::size_t>> place_of(const at::Tensor& param, const optim::ParamGroups& groups) {
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const std::vector<at::Tensor>& params = groups[i].params();
    const auto found =
        std::find_if(params.begin(), params.end(), [&](const at::Tensor& p) { return p.is_same(param); });
    if (found != params.end()) return std::pair(i, static_cast<std::size_t>(found - params.begin()));
  }
  return std::nullopt;
}

}  // namespace

Words Optimizer::Private::words(const Optimizer& optimizer) const {
  return {title, Language::cpp, [&groups = optimizer.param_groups()](const at::Tensor& param) -> std::string {
            const auto place = place_of(param, groups);
            return place ? engine::parameter_name(place->second, place->first) : "";
          }};
}

Optimizer::Optimizer(const std::string& algorithm, const std::string& title,
                     const std::vector<OptimizerParamGroup>& param_groups, Options defaults) try
    : torch
  ::optim::Optimizer(std::vector<OptimizerParamGroup>(),
                     std::make_unique<Options>(optim::with_algorithm(defaults, algorithm))),
      private_(std::make_unique<Private>()) {
    private_->algorithm = algorithm;
    private_->title = title;
    const Speaking speaking(held().words(*this));
    const Options& own = static_cast<const Options&>(this->defaults());
    optim::values_of(own, "");
    TORCH_CHECK_VALUE(!param_groups.empty(), prefix(), "param_groups must not be empty");
    const std::vector<OptimizerParamGroup> groups = optim::resolved(param_groups, algorithm);
    optim::checked(groups, own);
    optim::check_asked_of_optimizer(groups, own);
    const auto has_params = [](const OptimizerParamGroup& group) { return !group.params().empty(); };
    TORCH_CHECK_VALUE(std::any_of(param_groups.begin(), param_groups.end(), has_params), prefix(),
                      "params must not be empty");
    for (const OptimizerParamGroup& group : groups) add_checked(group);
  }
catch (const c10::Error&) {
  rethrow_in_one_sentence();
}

Optimizer::~Optimizer() = default;

std::vector<OptimizerParamGroup> Optimizer::with_owners(std::vector<OptimizerParamGroup> param_groups) {
  for (OptimizerParamGroup& group : param_groups) {
    if (!group.has_options()) continue;
    std::unique_ptr<torch::optim::OptimizerOptions> options = group.options().clone();
    if (auto* ours = dynamic_cast<Options*>(options.get())) ours->owners(Owners::shard);
    group.set_options(std::move(options));
  }
  return param_groups;
}

void Optimizer::add_param_group(const OptimizerParamGroup& param_group) {
  Private::run(*this, [&](Private& held, optim::Front&) {
    const auto& defaults = static_cast<const Options&>(this->defaults());
    std::vector<OptimizerParamGroup> groups = param_groups();
    groups.push_back(param_group);
    if (!param_group.has_options()) {  // what holds for the optimizer may have been set since, or loaded
      const Options& first = optim::first_options(param_groups(), defaults);
      Options options = defaults;
      options.nonfinite(first.nonfinite()).capturable(first.capturable()).owners(first.owners());
      groups.back().set_options(std::make_unique<Options>(options));
    }
    groups = optim::resolved(groups, held.algorithm);
    optim::checked(groups, defaults);
    add_checked(groups.back());
  });
}

void Optimizer::add_checked(const OptimizerParamGroup& param_group) {
  torch::optim::Optimizer::add_param_group(param_group);
  // Newer versions of LibTorch merge a group's options with the defaults, and take those for options of a type that is
  // not their own.
  if (param_group.has_options()) param_groups().back().set_options(param_group.options().clone());
  const std::size_t index = param_groups().size() - 1;
  const OptimizerParamGroup& group = param_groups()[index];
  const Options& options = options_of(group, index);
  held().said.push_back(optim::look_at_added(group, static_cast<const Options&>(defaults()), index));
  for (std::size_t k = 0; k < group.params().size(); ++k) {
    optim::warn_of_a_likely_stack(group.params()[k], options, engine::parameter_name(k, index));
  }
}

void Optimizer::set_layout(const at::Tensor& param, Layout layout) {
  Private::run(*this, [&](Private& held, optim::Front&) {
    const auto place = place_of(param, param_groups());
    TORCH_CHECK_VALUE(place, prefix(), "a layout must be set for a parameter of the optimizer, got ",
                      param.defined() ? c10::str("another tensor, of shape ", param.sizes()) : "an undefined one");
    const auto [group, k] = *place;
    const std::string name = engine::parameter_name(k, group);
    TORCH_CHECK_VALUE(state().count(param.unsafeGetTensorImpl()) == 0, prefix(), "the layout of ", name,
                      " must be set before its state exists: before its first step and before a checkpoint is loaded");
    const Options& given = options_of(param_groups()[group], group);
    const engine::GroupOptions options = optim::values_of(given, optim::group_name(group));
    optim::check_layout(param, layout, options, name);
    if (engine::has_owners(options.values)) engine::axis_of_owners(layout, name);
    engine::check_factors(engine::whole_sizes(param, layout), options.values, layout, name);
    held.layouts[param.unsafeGetTensorImpl()] = std::move(layout);
    held.seen = {};
  });
}

at::Tensor Optimizer::step(LossClosure closure) {
  held();
  at::Tensor loss;
  if (closure) {
    at::AutoGradMode enable_grad(true);
    loss = closure();
  }
  Private::run(*this, [](Private& held, optim::Front& front) { held.core.step(front); });
  return loss;
}

const ParamState& Optimizer::state_of(const at::Tensor& param) const {
  return Private::run(*this, [&](Private& held, optim::Front&) -> const ParamState& {
    held.core.flush();
    const auto found = state().find(param.unsafeGetTensorImpl());
    TORCH_CHECK_VALUE(found != state().end(), prefix(),
                      param.defined() ? c10::str("a parameter of shape ", param.sizes()) : "an undefined parameter",
                      " has no state yet: it was in no step, or is not of this optimizer");
    return optim::ours(*found->second);
  });
}

Stats Optimizer::stats() const {
  return Private::run(*this, [](Private& held, optim::Front&) {
    held.core.flush();
    const engine::Counts& counts = held.core.memory().counts;
    return Stats{.steps = counts.steps,
                 .skipped_steps = counts.skipped.total(),
                 .nonfinite_entries = counts.nonfinite.total(),
                 .columns_without_signal = counts.without_signal.total(),
                 .columns_in_margin = counts.in_margin.total(),
                 .batches = counts.batches,
                 .workspace_bytes = counts.workspace_bytes,
                 .expected_traffic = counts.expected_traffic,
                 .traffic = optim::traffic_of(held.layouts)};
  });
}

void Optimizer::synchronize_for_checkpoint() {
  Private::run(*this, [](Private& held, optim::Front& front) {
    const auto averages = [](const auto& item) { return !item.second.replicas.absent(); };
    if (std::none_of(held.layouts.begin(), held.layouts.end(), averages)) return held.core.refuse_if_broken();
    held.core.synchronize_for_checkpoint(front);
  });
}

void Optimizer::check_replicas(const Axis& copies) const {
  Private::run(*this, [&](Private& held, optim::Front& front) { held.core.check_replicas(front, copies); });
}

void Optimizer::synchronize_replicas(const Axis& copies) {
  Private::run(*this, [&](Private& held, optim::Front& front) { held.core.synchronize_replicas(front, copies); });
}

void Optimizer::resize_rank() {
  Private::run(*this, [](Private& held, optim::Front& front) { held.core.resize_rank(front); });
}

// What is left of an optimizer that was moved holds nothing, and its methods say so.

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
