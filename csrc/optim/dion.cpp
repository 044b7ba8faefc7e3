#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <memory>
#include <unordered_set>

#include "engine/step.h"
#include "one_sentence.h"
#include "optim/agreement.h"
#include "optim/capturable.h"
#include "optim/hand_over.h"
#include "optim/names.h"
#include "optim/parameters.h"
#include "optim/private.h"

namespace torchdion {

using optim::options_of;
using torch::optim::OptimizerParamGroup;

namespace optim {

std::string group_name(std::size_t index) { return " (parameter group " + std::to_string(index) + ")"; }

std::string parameter_name(std::size_t place, std::size_t group) {
  return "parameter " + std::to_string(place) + group_name(group);
}

const DionOptions& options_of(const OptimizerParamGroup& group, std::size_t index) {
  const auto* options = dynamic_cast<const DionOptions*>(&group.options());
  TORCH_CHECK_VALUE(options, "torchdion::Dion: the options of a group must be torchdion::DionOptions",
                    group_name(index));
  return *options;
}

const DionParamState& ours(const torch::optim::OptimizerParamState& state) {
  const auto* own = dynamic_cast<const DionParamState*>(&state);
  TORCH_CHECK_VALUE(own, "torchdion::Dion: the state of a parameter must be a torchdion::DionParamState");
  return *own;
}

engine::Words words_of(const std::vector<OptimizerParamGroup>& groups) {
  engine::Words words;
  words.name = [&groups](const at::Tensor& param) -> std::string {
    for (std::size_t i = 0; i < groups.size(); ++i) {
      const std::vector<at::Tensor>& params = groups[i].params();
      const auto found =
          std::find_if(params.begin(), params.end(), [&](const at::Tensor& p) { return p.is_same(param); });
      if (found != params.end()) return parameter_name(found - params.begin(), i);
    }
    return {};
  };
  return words;
}

namespace {

const DionOptions& first_options(const std::vector<OptimizerParamGroup>& groups, const DionOptions& defaults) {
  return groups.empty() || !groups[0].has_options() ? defaults : options_of(groups[0], 0);
}

}  // namespace

Nonfinite nonfinite_of(const std::vector<OptimizerParamGroup>& groups, const DionOptions& defaults) {
  return first_options(groups, defaults).nonfinite();
}

bool capturable_of(const std::vector<OptimizerParamGroup>& groups, const DionOptions& defaults) {
  return first_options(groups, defaults).capturable();
}

Precision precision_of(const std::vector<OptimizerParamGroup>& groups, const DionOptions& defaults) {
  return first_options(groups, defaults).precision();
}

void check_groups(const std::vector<OptimizerParamGroup>& groups, const DionOptions& defaults) {
  const Nonfinite nonfinite = nonfinite_of(groups, defaults);
  const bool capturable = capturable_of(groups, defaults);
  const Precision precision = precision_of(groups, defaults);
  std::unordered_set<const void*> seen;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const DionOptions& options = groups[i].has_options() ? options_of(groups[i], i) : defaults;
    check_options(options, group_name(i));
    TORCH_CHECK_VALUE(options.nonfinite() == nonfinite,
                      "torchdion::Dion: nonfinite must be the same in all groups, got ", shown(options.nonfinite()),
                      " beside ", shown(nonfinite), group_name(i));
    TORCH_CHECK_VALUE(options.precision() == precision,
                      "torchdion::Dion: precision must be the same in all groups, got ", shown(options.precision()),
                      " beside ", shown(precision), group_name(i));
    TORCH_CHECK_VALUE(options.capturable() == capturable, "torchdion::Dion: capturable holds for the whole optimizer, ",
                      "got ", shown(options.capturable()), group_name(i));
    for (std::size_t k = 0; k < groups[i].params().size(); ++k) {
      const at::Tensor& param = groups[i].params()[k];
      const std::string name = parameter_name(k, i);
      check_parameter(param, options, name);
      TORCH_CHECK_VALUE(seen.insert(param.unsafeGetTensorImpl()).second, "torchdion::Dion: ", name, " is given twice");
    }
  }
}

}  // namespace optim

Dion::Dion(const std::vector<OptimizerParamGroup>& param_groups, DionOptions defaults) try
    : Optimizer(std::vector<OptimizerParamGroup>(), std::make_unique<DionOptions>(defaults)),
      private_(std::make_unique<Private>()) {
  optim::check_options(defaults, "");
  TORCH_CHECK_VALUE(!param_groups.empty(), "torchdion::Dion: param_groups must not be empty");
  std::vector<OptimizerParamGroup> groups = param_groups;
  for (std::size_t i = 0; i < groups.size(); ++i) optim::keep_each_once(groups[i].params(), optim::group_name(i));
  optim::check_groups(groups, defaults);
  // What the defaults leave as it is they do not ask for.
  const Nonfinite nonfinite = optim::nonfinite_of(param_groups, defaults);
  TORCH_CHECK_VALUE(nonfinite == defaults.nonfinite() || defaults.nonfinite() == DionOptions().nonfinite(),
                    "torchdion::Dion: nonfinite holds for the whole optimizer and must be that of the defaults",
                    optim::group_name(0));
  TORCH_CHECK_VALUE(optim::precision_of(param_groups, defaults) == defaults.precision() ||
                        defaults.precision() == DionOptions().precision(),
                    "torchdion::Dion: precision holds for the whole optimizer and must be that of the defaults",
                    optim::group_name(0));
  TORCH_CHECK_VALUE(optim::capturable_of(param_groups, defaults) || !defaults.capturable(),
                    "torchdion::Dion: capturable holds for the whole optimizer, got false", optim::group_name(0));
  const auto has_params = [](const OptimizerParamGroup& group) { return !group.params().empty(); };
  TORCH_CHECK_VALUE(std::any_of(param_groups.begin(), param_groups.end(), has_params),
                    "torchdion::Dion: params must not be empty");
  for (const OptimizerParamGroup& group : groups) add_checked(group);
} catch (const c10::Error&) {
  rethrow_in_one_sentence();
}

Dion::Dion(std::vector<at::Tensor> params, DionOptions defaults)
    : Dion(std::vector<OptimizerParamGroup>{OptimizerParamGroup(std::move(params))}, std::move(defaults)) {}

Dion::Dion(Dion&&) noexcept = default;
Dion& Dion::operator=(Dion&&) noexcept = default;
Dion::~Dion() = default;

void Dion::add_param_group(const OptimizerParamGroup& param_group) try {
  std::vector<OptimizerParamGroup> groups = param_groups();
  groups.push_back(param_group);
  optim::keep_each_once(groups.back().params(), optim::group_name(groups.size() - 1));
  if (!param_group.has_options()) {  // the policy may have been set since, or loaded
    DionOptions options = static_cast<const DionOptions&>(defaults());
    options.nonfinite(optim::nonfinite_of(param_groups(), options));
    options.precision(optim::precision_of(param_groups(), options));
    options.capturable(optim::capturable_of(param_groups(), options));
    groups.back().set_options(std::make_unique<DionOptions>(options));
  }
  optim::check_groups(groups, static_cast<const DionOptions&>(defaults()));
  add_checked(groups.back());
} catch (const c10::Error&) {
  rethrow_in_one_sentence();
}

void Dion::add_checked(const OptimizerParamGroup& param_group) {
  Optimizer::add_param_group(param_group);
  // Newer versions of LibTorch merge a group's options with the defaults, and take those for options of a type that is
  // not their own.
  if (param_group.has_options()) param_groups().back().set_options(param_group.options().clone());
  private_->agreed = false;
  const std::size_t index = param_groups().size() - 1;
  const OptimizerParamGroup& group = param_groups()[index];
  for (std::size_t k = 0; k < group.params().size(); ++k) {
    const std::string name = optim::parameter_name(k, index);
    optim::warn_of_a_likely_stack(group.params()[k], options_of(group, index), name);
  }
}

void Dion::set_layout(const at::Tensor& param, Layout layout) try {
  for (std::size_t i = 0; i < param_groups().size(); ++i) {
    const std::vector<at::Tensor>& params = param_groups()[i].params();
    const auto found =
        std::find_if(params.begin(), params.end(), [&](const at::Tensor& p) { return p.is_same(param); });
    if (found == params.end()) continue;
    const std::string name = optim::parameter_name(found - params.begin(), i);
    TORCH_CHECK_VALUE(state().count(param.unsafeGetTensorImpl()) == 0, "torchdion::Dion: the layout of ", name,
                      " must be set before its state exists: before its first step and before a checkpoint is loaded");
    const DionOptions& options = options_of(param_groups()[i], i);
    optim::check_layout(param, layout, options, name);
    if (optim::algorithm_of(param, options) == Algorithm::dion) {
      optim::check_orthonormalize(layout, options.orientation(), options, name);
    }
    private_->layouts[param.unsafeGetTensorImpl()] = std::move(layout);
    private_->agreed = false;
    return;
  }
  TORCH_CHECK_VALUE(false, "torchdion::Dion: a layout must be set for a parameter of the optimizer, got ",
                    param.defined() ? c10::str("another tensor, of shape ", param.sizes()) : "an undefined one");
} catch (const c10::Error&) {
  rethrow_in_one_sentence();
}

at::Tensor Dion::step(LossClosure closure) {
  at::Tensor loss;
  if (closure) {
    at::AutoGradMode enable_grad(true);
    loss = closure();
  }
  private_->step(*this);
  return loss;
}

void Dion::Private::step(Dion& optimizer) try {
  const engine::Speaking speaking(optim::words_of(optimizer.param_groups()));
  at::NoGradGuard no_grad;
  optim::Planned planned = plan(optimizer);
  decoupled = decoupled || planned.gathering->averages();
  const bool is_captured = optim::is_captured(optimizer.param_groups());
  try {
    engine::Report report = planned.step->run();
    planned.gathering->keep_new_states();
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
optim::Planned Dion::Private::plan(Dion& optimizer) {
  const std::vector<OptimizerParamGroup>& groups = optimizer.param_groups();
  const auto& defaults = static_cast<const DionOptions&>(optimizer.defaults());
  optim::Planned planned;
  const auto plan = [&](optim::Missing missing) {
    optim::check_groups(groups, defaults);  // anyone may have written to them
    planned.gathering.emplace(optimizer.state(), layouts, std::move(missing));
    planned.gathering->groups.capturable = optim::capturable_of(groups, defaults);
    for (std::size_t i = 0; i < groups.size(); ++i) planned.gathering->add(groups[i], i);
    planned.step = std::make_unique<engine::Step>(planned.gathering->groups, optim::nonfinite_of(groups, defaults));
  };
  // A captured step has no time for what ranks have to say, once they have compared their parameters.
  if (agreed && optim::capturable_of(groups, defaults)) {
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
  agreed = optim::capturable_of(groups, defaults);
  return planned;
}

void Dion::Private::agree(const Dion& optimizer, const optim::Handshake& handshake) const {
  optim::agree(optimizer, layouts, handshake, [&] { return may_be_decoupled(optimizer); });
}

void Dion::Private::count(engine::Report report, bool is_captured) {
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

const DionParamState& Dion::state_of(const at::Tensor& param) const try {
  const auto found = state().find(param.unsafeGetTensorImpl());
  TORCH_CHECK_VALUE(found != state().end(), "torchdion::Dion: ",
                    param.defined() ? c10::str("a parameter of shape ", param.sizes()) : "an undefined parameter",
                    " has no state yet: it was in no step, or is not of this optimizer");
  return optim::ours(*found->second);
} catch (const c10::Error&) {
  rethrow_in_one_sentence();
}

DionStats Dion::stats() const {
  DionStats stats = private_->stats;
  stats.skipped_steps = private_->skipped.total();
  stats.nonfinite_entries = private_->nonfinite.total();
  stats.columns_without_signal = private_->without_signal.total();
  stats.columns_in_margin = private_->in_margin.total();
  stats.traffic = optim::traffic_of(private_->layouts);
  return stats;
}

}  // namespace torchdion
