#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <memory>

#include "engine/shapes.h"
#include "engine/state_owners.h"
#include "one_sentence.h"
#include "optim/groups.h"
#include "optim/options.h"
#include "optim/parameters.h"
#include "optim/private.h"
#include "words.h"

namespace torchdion {

using optim::options_of;
using torch::optim::OptimizerParamGroup;

Words Optimizer::Private::words(const Optimizer& optimizer) const {
  const std::vector<OptimizerParamGroup>& groups = optimizer.param_groups();
  return {title, Language::cpp, [&groups](const at::Tensor& param) -> std::string {
            for (std::size_t i = 0; i < groups.size(); ++i) {
              const std::vector<at::Tensor>& params = groups[i].params();
              const auto found =
                  std::find_if(params.begin(), params.end(), [&](const at::Tensor& p) { return p.is_same(param); });
              if (found != params.end()) return engine::parameter_name(found - params.begin(), i);
            }
            return {};
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

void Optimizer::add_param_group(const OptimizerParamGroup& param_group) try {
  const Speaking speaking(held().words(*this));
  const auto& defaults = static_cast<const Options&>(this->defaults());
  std::vector<OptimizerParamGroup> groups = param_groups();
  groups.push_back(param_group);
  if (!param_group.has_options()) {  // what holds for the optimizer may have been set since, or loaded
    const Options& first = optim::first_options(param_groups(), defaults);
    Options options = defaults;
    options.nonfinite(first.nonfinite()).capturable(first.capturable()).owners(first.owners());
    groups.back().set_options(std::make_unique<Options>(options));
  }
  groups = optim::resolved(groups, held().algorithm);
  optim::checked(groups, defaults);
  add_checked(groups.back());
} catch (const c10::Error&) {
  rethrow_in_one_sentence();
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

void Optimizer::set_layout(const at::Tensor& param, Layout layout) try {
  const Speaking speaking(held().words(*this));
  for (std::size_t i = 0; i < param_groups().size(); ++i) {
    const std::vector<at::Tensor>& params = param_groups()[i].params();
    const auto found =
        std::find_if(params.begin(), params.end(), [&](const at::Tensor& p) { return p.is_same(param); });
    if (found == params.end()) continue;
    const std::string name = engine::parameter_name(found - params.begin(), i);
    TORCH_CHECK_VALUE(state().count(param.unsafeGetTensorImpl()) == 0, prefix(), "the layout of ", name,
                      " must be set before its state exists: before its first step and before a checkpoint is loaded");
    const Options& given = options_of(param_groups()[i], i);
    const engine::GroupOptions options = optim::values_of(given, optim::group_name(i));
    optim::check_layout(param, layout, options, name);
    if (engine::has_owners(options.values)) engine::axis_of_owners(layout, name);
    engine::check_factors(engine::whole_sizes(param, layout), options.values, layout, name);
    held().layouts[param.unsafeGetTensorImpl()] = std::move(layout);
    held().seen = {};
    return;
  }
  TORCH_CHECK_VALUE(false, prefix(), "a layout must be set for a parameter of the optimizer, got ",
                    param.defined() ? c10::str("another tensor, of shape ", param.sizes()) : "an undefined one");
} catch (const c10::Error&) {
  rethrow_in_one_sentence();
}

at::Tensor Optimizer::step(LossClosure closure) {
  Private& held = this->held();
  at::Tensor loss;
  if (closure) {
    at::AutoGradMode enable_grad(true);
    loss = closure();
  }
  held.step(*this);
  return loss;
}

void Optimizer::Private::step(const Optimizer& optimizer) try {
  const Speaking speaking(words(optimizer));
  optim::Front front = this->front(optimizer);
  core.step(front);
} catch (const c10::Error&) {
  rethrow_in_one_sentence();
}

const ParamState& Optimizer::state_of(const at::Tensor& param) const try {
  const Speaking speaking(held().words(*this));
  held().core.flush();
  const auto found = state().find(param.unsafeGetTensorImpl());
  TORCH_CHECK_VALUE(found != state().end(), prefix(),
                    param.defined() ? c10::str("a parameter of shape ", param.sizes()) : "an undefined parameter",
                    " has no state yet: it was in no step, or is not of this optimizer");
  return optim::ours(*found->second);
} catch (const c10::Error&) {
  rethrow_in_one_sentence();
}

Stats Optimizer::stats() const try {
  const Speaking speaking(held().words(*this));
  held().core.flush();
  const engine::Counts& counts = held().core.memory().counts;
  Stats stats;
  stats.steps = counts.steps;
  stats.skipped_steps = counts.skipped.total();
  stats.nonfinite_entries = counts.nonfinite.total();
  stats.columns_without_signal = counts.without_signal.total();
  stats.columns_in_margin = counts.in_margin.total();
  stats.batches = counts.batches;
  stats.workspace_bytes = counts.workspace_bytes;
  stats.expected_traffic = counts.expected_traffic;
  stats.traffic = optim::traffic_of(held().layouts);
  return stats;
} catch (const c10::Error&) {
  rethrow_in_one_sentence();
}

}  // namespace torchdion
