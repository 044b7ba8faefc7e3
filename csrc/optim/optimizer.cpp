#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <memory>

#include "engine/shapes.h"
#include "engine/state.h"
#include "engine/state_owners.h"
#include "engine/step.h"
#include "one_sentence.h"
#include "optim/agreement.h"
#include "optim/capturable.h"
#include "optim/groups.h"
#include "optim/inputs.h"
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
              if (found != params.end()) return optim::parameter_name(found - params.begin(), i);
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
  held().agreed = held().compared = false;
  const std::size_t index = param_groups().size() - 1;
  const OptimizerParamGroup& group = param_groups()[index];
  const Options& options = options_of(group, index);
  held().said.push_back(optim::said_by(group, optim::values_of(options, optim::group_name(index))));
  for (const std::string& name : optim::foreign_options(options, static_cast<const Options&>(defaults()))) {
    TORCH_WARN(prefix(), "the option '", name, "'", optim::group_name(index), " is kept and ignored: the algorithm '",
               options.algorithm(), "' does not have it");
    held().said.back().told.emplace(name, optim::Reason::ignored);
  }
  for (std::size_t k = 0; k < group.params().size(); ++k) {
    optim::warn_of_a_likely_stack(group.params()[k], options, optim::parameter_name(k, index));
  }
}

void Optimizer::set_layout(const at::Tensor& param, Layout layout) try {
  const Speaking speaking(held().words(*this));
  for (std::size_t i = 0; i < param_groups().size(); ++i) {
    const std::vector<at::Tensor>& params = param_groups()[i].params();
    const auto found =
        std::find_if(params.begin(), params.end(), [&](const at::Tensor& p) { return p.is_same(param); });
    if (found == params.end()) continue;
    const std::string name = optim::parameter_name(found - params.begin(), i);
    TORCH_CHECK_VALUE(state().count(param.unsafeGetTensorImpl()) == 0, prefix(), "the layout of ", name,
                      " must be set before its state exists: before its first step and before a checkpoint is loaded");
    const Options& given = options_of(param_groups()[i], i);
    const engine::GroupOptions options = optim::values_of(given, optim::group_name(i));
    optim::check_layout(param, layout, options, name);
    if (engine::has_owners(options.values)) engine::axis_of_owners(layout, name);
    optim::check_factors(param, layout, optim::algorithm_of(param, given), options, name);
    held().layouts[param.unsafeGetTensorImpl()] = std::move(layout);
    held().agreed = held().compared = false;
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

void Optimizer::Private::step(Optimizer& optimizer) try {
  const Speaking speaking(words(optimizer));
  at::NoGradGuard no_grad;
  optim::Planned planned = plan(optimizer);
  may_decouple(optimizer, planned.inputs->averages());
  const bool is_captured = optim::is_captured(optimizer.param_groups());
  try {
    engine::Report report = planned.step->run();
    planned.inputs->keep_new_states();
    count(std::move(report), is_captured);
    in_flight = planned.step->take_in_flight();
  } catch (...) {
    if (planned.step->wrote() && !is_captured) {
      broken = "the last step failed after " + std::to_string(planned.step->completed()) + " of " +
               std::to_string(planned.step->batches()) + " batches";
    }
    throw;
  }
} catch (const c10::Error&) {
  rethrow_in_one_sentence();
}

void Optimizer::Private::flush() {
  const std::unique_ptr<engine::InFlight> ending = std::move(in_flight);
  if (!ending) return;
  try {
    const engine::Report report = ending->wait();
    without_signal.add(report.without_signal);
    in_margin.add(report.in_margin);
  } catch (...) {
    broken = "what the last step had left in flight failed after " + std::to_string(ending->completed()) + " of " +
             std::to_string(ending->batches()) + " batches";
    throw;
  }
}

// Checked on this rank, and on all others.
optim::Planned Optimizer::Private::plan(Optimizer& optimizer) {
  const std::vector<OptimizerParamGroup>& groups = optimizer.param_groups();
  const auto& defaults = static_cast<const Options&>(optimizer.defaults());
  optim::Planned planned;
  const auto plan = [&](optim::Missing missing) {
    std::vector<engine::GroupOptions> options = optim::checked(groups, defaults);  // anyone may have written to them
    optim::look_at(optimizer, layouts, options, said);
    planned.inputs.emplace(optimizer.state(), layouts, optim::parts_of(groups, layouts), std::move(missing));
    planned.inputs->groups.capturable = optim::first_options(groups, defaults).capturable();
    for (std::size_t i = 0; i < groups.size(); ++i) planned.inputs->add(groups[i], i, options[i]);
    planned.step =
        std::make_unique<engine::Step>(planned.inputs->groups, optim::first_options(groups, defaults).nonfinite());
    if (planned.step->in_flight()) planned.step->in_flight()->check_axes();
  };
  // A captured step has no time for what ranks have to say, once they have compared their parameters.
  if (agreed && optim::first_options(groups, defaults).capturable()) {
    refuse_if_broken();
    plan(optim::missing_when_alone(optimizer, layouts));
    return planned;
  }
  optim::Handshake handshake{engine::Operation::step};
  handshake.check = [&] {
    refuse_if_broken();
    refuse_other_holders(optimizer);
    plan({});
  };
  optim::Missing missing_here;
  handshake.provide = [&](optim::Missing missing) {
    missing_here = std::move(missing);
    if (!missing_here.empty()) plan(missing_here);
  };
  handshake.compares = !compared;
  handshake.common = [&] { return common(optimizer); };
  if (const optim::Apart apart = agree(optimizer, handshake)) {
    planned.step.reset();  // with its copies of weights that will be others, and its memory
    start_alike(optimizer, *apart);
    plan(missing_here);
  }
  compared = true;
  agreed = optim::first_options(groups, defaults).capturable();
  return planned;
}

optim::Apart Optimizer::Private::agree(const Optimizer& optimizer, const optim::Handshake& handshake) const {
  return optim::agree(optimizer, layouts, handshake, [&] { return may_be_decoupled(optimizer); });
}

void Optimizer::Private::count(engine::Report report, bool is_captured) {
  stats.steps += 1;
  stats.batches = report.batches;
  stats.workspace_bytes = report.workspace_bytes;
  stats.expected_traffic = std::move(report.expected_traffic);
  if (is_captured) return;  // a replay would not add to the rest
  skipped.known += report.skipped;
  if (report.left_out.defined()) skipped.add(report.left_out);
  nonfinite.add(report.nonfinite);
  without_signal.add(report.without_signal);
  in_margin.add(report.in_margin);
}

const ParamState& Optimizer::state_of(const at::Tensor& param) const try {
  const Speaking speaking(held().words(*this));
  held().flush();
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
  held().flush();
  Stats stats = held().stats;
  stats.skipped_steps = held().skipped.total();
  stats.nonfinite_entries = held().nonfinite.total();
  stats.columns_without_signal = held().without_signal.total();
  stats.columns_in_margin = held().in_margin.total();
  stats.traffic = optim::traffic_of(held().layouts);
  return stats;
} catch (const c10::Error&) {
  rethrow_in_one_sentence();
}

}  // namespace torchdion
