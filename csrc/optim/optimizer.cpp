#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <memory>
#include <unordered_set>

#include "engine/group_options.h"
#include "engine/step.h"
#include "one_sentence.h"
#include "optim/agreement.h"
#include "optim/capturable.h"
#include "optim/inputs.h"
#include "optim/options.h"
#include "optim/parameters.h"
#include "optim/private.h"
#include "words.h"

namespace torchdion {

using optim::options_of;
using torch::optim::OptimizerParamGroup;

namespace optim {

std::string group_name(std::size_t index, const std::string& whose) {
  return " (parameter group " + std::to_string(index) + whose + ")";
}

std::string parameter_name(std::size_t place, std::size_t group) {
  return "parameter " + std::to_string(place) + group_name(group);
}

const Options& options_of(const OptimizerParamGroup& group, std::size_t index) {
  const auto* options = dynamic_cast<const Options*>(&group.options());
  TORCH_CHECK_VALUE(options, prefix(), "the options of a group must be torchdion::Options", group_name(index));
  return *options;
}

const ParamState& ours(const torch::optim::OptimizerParamState& state) {
  const auto* own = dynamic_cast<const ParamState*>(&state);
  TORCH_CHECK_VALUE(own, prefix(), "the state of a parameter must be a torchdion::ParamState");
  return *own;
}

std::vector<std::string> names_of(const ParamState& state) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : state.tensors()) {
    if (name != "step" && tensor.defined()) names.push_back(name);
  }
  return names;
}

const Options& first_options(const std::vector<OptimizerParamGroup>& groups, const Options& defaults) {
  return groups.empty() || !groups[0].has_options() ? defaults : options_of(groups[0], 0);
}

void check_groups(const std::vector<OptimizerParamGroup>& groups, const Options& defaults, const std::string& whose) {
  std::vector<engine::GroupOptions> values;
  std::unordered_set<const void*> seen;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const Options& options = groups[i].has_options() ? options_of(groups[i], i) : defaults;
    values.push_back(values_of(options, group_name(i, whose)));
    for (std::size_t k = 0; k < groups[i].params().size(); ++k) {
      const at::Tensor& param = groups[i].params()[k];
      const std::string name = parameter_name(k, i);
      check_parameter(param, options, name);
      TORCH_CHECK_VALUE(seen.insert(param.unsafeGetTensorImpl()).second, prefix(), name, " is given twice");
    }
  }
  std::vector<const algorithms::Options*> all;
  for (const engine::GroupOptions& group : values) all.push_back(&group.values);
  engine::check_alike(all, whose);
}

namespace {

// Groups as the optimizer keeps them: without parameters that are given again, and each with an algorithm.
std::vector<OptimizerParamGroup> resolved(const std::vector<OptimizerParamGroup>& given, const std::string& algorithm) {
  std::vector<OptimizerParamGroup> groups;
  for (std::size_t i = 0; i < given.size(); ++i) {
    groups.push_back(given[i]);
    keep_each_once(groups[i].params(), group_name(i));
    if (!given[i].has_options()) continue;
    Options options = options_of(given[i], i);
    if (options.algorithm().empty()) options.algorithm(algorithm);
    groups[i].set_options(std::make_unique<Options>(options));
  }
  return groups;
}

Options with_algorithm(Options options, const std::string& algorithm) {
  if (options.algorithm().empty()) options.algorithm(algorithm);
  return options;
}

// What the defaults leave as it is they do not ask for.
void check_of_optimizer(const Options& first, const Options& defaults) {
  const algorithms::Options own = values_of(first, group_name(0)).values, asked = values_of(defaults, "").values;
  for (const algorithms::Option& option : algorithms::options()) {
    const bool is_asked = option.of_optimizer && asked.at(option.name) != option.initial;
    TORCH_CHECK_VALUE(!is_asked || own.at(option.name) == asked.at(option.name), prefix(), option.name,
                      " holds for the whole optimizer and must be that of the defaults, got ",
                      algorithms::shown(option, own.at(option.name)), group_name(0));
  }
}

}  // namespace

}  // namespace optim

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
    const Speaking speaking(private_->words(*this));
    const Options& own = static_cast<const Options&>(this->defaults());
    optim::values_of(own, "");
    TORCH_CHECK_VALUE(!param_groups.empty(), prefix(), "param_groups must not be empty");
    const std::vector<OptimizerParamGroup> groups = optim::resolved(param_groups, algorithm);
    optim::check_groups(groups, own);
    optim::check_of_optimizer(optim::first_options(groups, own), own);
    const auto has_params = [](const OptimizerParamGroup& group) { return !group.params().empty(); };
    TORCH_CHECK_VALUE(std::any_of(param_groups.begin(), param_groups.end(), has_params), prefix(),
                      "params must not be empty");
    for (const OptimizerParamGroup& group : groups) add_checked(group);
  }
catch (const c10::Error&) {
  rethrow_in_one_sentence();
}

Optimizer::Optimizer(Optimizer&&) noexcept = default;
Optimizer& Optimizer::operator=(Optimizer&&) noexcept = default;
Optimizer::~Optimizer() = default;

void Optimizer::add_param_group(const OptimizerParamGroup& param_group) try {
  const Speaking speaking(private_->words(*this));
  const auto& defaults = static_cast<const Options&>(this->defaults());
  std::vector<OptimizerParamGroup> groups = param_groups();
  groups.push_back(param_group);
  if (!param_group.has_options()) {  // what holds for the optimizer may have been set since, or loaded
    const Options& first = optim::first_options(param_groups(), defaults);
    Options options = defaults;
    options.nonfinite(first.nonfinite()).precision(first.precision()).capturable(first.capturable());
    groups.back().set_options(std::make_unique<Options>(options));
  }
  groups = optim::resolved(groups, private_->algorithm);
  optim::check_groups(groups, defaults);
  add_checked(groups.back());
} catch (const c10::Error&) {
  rethrow_in_one_sentence();
}

void Optimizer::add_checked(const OptimizerParamGroup& param_group) {
  torch::optim::Optimizer::add_param_group(param_group);
  // Newer versions of LibTorch merge a group's options with the defaults, and take those for options of a type that is
  // not their own.
  if (param_group.has_options()) param_groups().back().set_options(param_group.options().clone());
  private_->agreed = false;
  const std::size_t index = param_groups().size() - 1;
  const OptimizerParamGroup& group = param_groups()[index];
  const Options& options = options_of(group, index);
  for (const std::string& name : optim::foreign_options(options, static_cast<const Options&>(defaults()))) {
    TORCH_WARN(prefix(), "the option '", name, "'", optim::group_name(index), " is kept and ignored: the algorithm '",
               options.algorithm(), "' does not have it");
  }
  for (std::size_t k = 0; k < group.params().size(); ++k) {
    optim::warn_of_a_likely_stack(group.params()[k], options, optim::parameter_name(k, index));
  }
}

void Optimizer::set_layout(const at::Tensor& param, Layout layout) try {
  const Speaking speaking(private_->words(*this));
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
    const algorithms::Algorithm& algorithm = optim::algorithm_of(param, given);
    if (algorithm.check_layout) {  // of a new factor
      const bool right = options.values.text("orientation") == "right";
      algorithm.check_layout(right ? layout.t() : layout, right, options.values, name);
    }
    private_->layouts[param.unsafeGetTensorImpl()] = std::move(layout);
    private_->agreed = false;
    return;
  }
  TORCH_CHECK_VALUE(false, prefix(), "a layout must be set for a parameter of the optimizer, got ",
                    param.defined() ? c10::str("another tensor, of shape ", param.sizes()) : "an undefined one");
} catch (const c10::Error&) {
  rethrow_in_one_sentence();
}

at::Tensor Optimizer::step(LossClosure closure) {
  at::Tensor loss;
  if (closure) {
    at::AutoGradMode enable_grad(true);
    loss = closure();
  }
  private_->step(*this);
  return loss;
}

void Optimizer::Private::step(Optimizer& optimizer) try {
  const Speaking speaking(words(optimizer));
  at::NoGradGuard no_grad;
  optim::Planned planned = plan(optimizer);
  decoupled = decoupled || planned.inputs->averages();
  const bool is_captured = optim::is_captured(optimizer.param_groups());
  try {
    engine::Report report = planned.step->run();
    planned.inputs->keep_new_states();
    count(std::move(report), is_captured);
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

// Checked on this rank, and on all others.
optim::Planned Optimizer::Private::plan(Optimizer& optimizer) {
  const std::vector<OptimizerParamGroup>& groups = optimizer.param_groups();
  const auto& defaults = static_cast<const Options&>(optimizer.defaults());
  optim::Planned planned;
  const auto plan = [&](optim::Missing missing) {
    optim::check_groups(groups, defaults);  // anyone may have written to them
    planned.inputs.emplace(optimizer.state(), layouts, std::move(missing));
    planned.inputs->groups.capturable = optim::first_options(groups, defaults).capturable();
    for (std::size_t i = 0; i < groups.size(); ++i) planned.inputs->add(groups[i], i);
    planned.step =
        std::make_unique<engine::Step>(planned.inputs->groups, optim::first_options(groups, defaults).nonfinite());
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
    plan({});
  };
  handshake.provide = [&](optim::Missing missing) {
    if (!missing.empty()) plan(std::move(missing));
  };
  agree(optimizer, handshake);
  agreed = optim::first_options(groups, defaults).capturable();
  return planned;
}

void Optimizer::Private::agree(const Optimizer& optimizer, const optim::Handshake& handshake) const {
  optim::agree(optimizer, layouts, handshake, [&] { return may_be_decoupled(optimizer); });
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
  const Speaking speaking(private_->words(*this));
  const auto found = state().find(param.unsafeGetTensorImpl());
  TORCH_CHECK_VALUE(found != state().end(), prefix(),
                    param.defined() ? c10::str("a parameter of shape ", param.sizes()) : "an undefined parameter",
                    " has no state yet: it was in no step, or is not of this optimizer");
  return optim::ours(*found->second);
} catch (const c10::Error&) {
  rethrow_in_one_sentence();
}

Stats Optimizer::stats() const {
  Stats stats = private_->stats;
  stats.skipped_steps = private_->skipped.total();
  stats.nonfinite_entries = private_->nonfinite.total();
  stats.columns_without_signal = private_->without_signal.total();
  stats.columns_in_margin = private_->in_margin.total();
  stats.traffic = optim::traffic_of(private_->layouts);
  return stats;
}

}  // namespace torchdion
