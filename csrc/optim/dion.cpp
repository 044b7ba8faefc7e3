#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <unordered_set>

#include "engine/state.h"
#include "engine/step.h"
#include "optim/parameters.h"
#include "optim/private.h"

namespace torchdion {

using optim::options_of;
using torch::optim::OptimizerParamGroup;

namespace optim {

std::string group_name(std::size_t index) { return " (parameter group " + std::to_string(index) + ")"; }

const DionOptions& options_of(const OptimizerParamGroup& group, std::size_t index) {
  const auto* options = dynamic_cast<const DionOptions*>(&group.options());
  TORCH_CHECK_VALUE(options, "torchdion::Dion: the options of a group must be torchdion::DionOptions",
                    group_name(index));
  return *options;
}

void check_groups(const std::vector<OptimizerParamGroup>& groups, const DionOptions& defaults) {
  std::unordered_set<const void*> seen;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const DionOptions& options = groups[i].has_options() ? options_of(groups[i], i) : defaults;
    check_options(options, group_name(i));
    TORCH_CHECK_VALUE(options.nonfinite() == defaults.nonfinite(),
                      "torchdion::Dion: nonfinite holds for the whole optimizer and must be that of the defaults",
                      group_name(i));
    for (std::size_t k = 0; k < groups[i].params().size(); ++k) {
      const at::Tensor& param = groups[i].params()[k];
      const std::string name = "parameter " + std::to_string(k) + group_name(i);
      check_parameter(param, options, name);
      TORCH_CHECK_VALUE(seen.insert(param.unsafeGetTensorImpl()).second, "torchdion::Dion: ", name, " is given twice");
    }
  }
}

namespace {

// The lists that the engine takes, gathered parameter by parameter. State that is missing is made, but kept here until
// the step has been found good.
class Gathering {
 public:
  using States = decltype(std::declval<Dion&>().state());

  explicit Gathering(States states) : states_(states) {}

  void add(const OptimizerParamGroup& group, const DionOptions& options) {
    engine::DionGroup dion;
    engine::LionGroup lion;
    engine::AdamWGroup adamw;
    for (const at::Tensor& param : group.params()) {
      const int64_t index = index_++;
      if (!param.grad().defined()) continue;
      const Algorithm algorithm = algorithm_of(param, options);
      const DionParamState& state = state_of(param, options, index);
      if (algorithm == Algorithm::dion) append(dion, param, state).Q.push_back(needed(state.Q(), "Q", param));
      if (algorithm == Algorithm::lion) append(lion, param, state);
      if (algorithm == Algorithm::adamw) {
        append(adamw, param, state).V.push_back(needed(state.variance(), "variance", param));
      }
    }
    const double lr = options.lr() * options.lr_scale();
    const auto [beta1, beta2] = betas_of(options);
    dion.hyper = {lr,
                  options.mu(),
                  options.weight_decay(),
                  options.maximize(),
                  options.orthonormalize(),
                  options.rcqr_oversample(),
                  options.seed()};
    dion.form = form_of(options);
    dion.orientation = options.orientation();
    lion.hyper = {lr, beta1, beta2, options.weight_decay(), options.maximize()};
    adamw.hyper = {lr, beta1, beta2, options.weight_decay(), options.epsilon(), options.maximize()};
    if (!dion.X.empty()) groups.dion.push_back(std::move(dion));
    if (!lion.X.empty()) groups.lion.push_back(std::move(lion));
    if (!adamw.X.empty()) groups.adamw.push_back(std::move(adamw));
  }

  void keep_new_states() {
    for (auto& [param, state] : made_) states_[param] = std::move(state);
  }

  engine::Groups groups;

 private:
  const DionParamState& state_of(const at::Tensor& param, const DionOptions& options, int64_t index) {
    const auto found = states_.find(param.unsafeGetTensorImpl());
    if (found != states_.end()) return static_cast<const DionParamState&>(*found->second);
    made_.emplace_back(param.unsafeGetTensorImpl(), std::make_unique<DionParamState>());
    DionParamState& state = *made_.back().second;
    const auto zeros = [&](const std::optional<at::ScalarType>& dtype) {
      return at::zeros(param.sizes(), at::TensorOptions(dtype.value_or(param.scalar_type())));
    };
    state.step(at::zeros({}, at::kFloat)).momentum(zeros(options.momentum_dtype()));
    const Algorithm algorithm = algorithm_of(param, options);
    if (algorithm == Algorithm::adamw) state.variance(zeros(options.variance_dtype()));
    if (algorithm == Algorithm::dion) {
      const engine::QStart start{options.orientation(), options.rank_fraction(), options.rank_multiple_of(),
                                 options.seed(), index};
      const at::TensorOptions dtype(options.Q_dtype().value_or(param.scalar_type()));
      state.Q(engine::start_of_Q(param.sizes(), form_of(options), start, dtype));
    }
    return state;
  }

  static const at::Tensor& needed(const at::Tensor& tensor, const char* name, const at::Tensor& param) {
    TORCH_CHECK_VALUE(tensor.defined(), "torchdion::Dion: the state of a parameter of shape ", param.sizes(),
                      " lacks the tensor ", name, "; is it of other options?");
    return tensor;
  }

  template <class Group>
  static Group& append(Group& group, const at::Tensor& param, const DionParamState& state) {
    group.X.push_back(param);
    group.G.push_back(param.grad());
    group.M.push_back(needed(state.momentum(), "momentum", param));
    group.steps.push_back(needed(state.step(), "step", param));
    return group;
  }

  States states_;
  std::vector<std::pair<void*, std::unique_ptr<DionParamState>>> made_;
  int64_t index_ = 0;
};

}  // namespace

}  // namespace optim

Dion::Dion(const std::vector<OptimizerParamGroup>& param_groups, DionOptions defaults)
    : Optimizer(std::vector<OptimizerParamGroup>(), std::make_unique<DionOptions>(defaults)),
      private_(std::make_unique<Private>()) {
  optim::check_options(defaults, "");
  TORCH_CHECK_VALUE(!param_groups.empty(), "torchdion::Dion: param_groups must not be empty");
  optim::check_groups(param_groups, defaults);
  const auto has_params = [](const OptimizerParamGroup& group) { return !group.params().empty(); };
  TORCH_CHECK_VALUE(std::any_of(param_groups.begin(), param_groups.end(), has_params),
                    "torchdion::Dion: params must not be empty");
  for (const OptimizerParamGroup& group : param_groups) add_checked(group);
}

Dion::Dion(std::vector<at::Tensor> params, DionOptions defaults)
    : Dion(std::vector<OptimizerParamGroup>{OptimizerParamGroup(std::move(params))}, std::move(defaults)) {}

Dion::Dion(Dion&&) noexcept = default;
Dion& Dion::operator=(Dion&&) noexcept = default;
Dion::~Dion() = default;

void Dion::add_param_group(const OptimizerParamGroup& param_group) {
  std::vector<OptimizerParamGroup> groups = param_groups();
  groups.push_back(param_group);
  optim::check_groups(groups, static_cast<const DionOptions&>(defaults()));
  add_checked(param_group);
}

void Dion::add_checked(const OptimizerParamGroup& param_group) {
  Optimizer::add_param_group(param_group);
  const std::size_t index = param_groups().size() - 1;
  const OptimizerParamGroup& group = param_groups()[index];
  for (std::size_t k = 0; k < group.params().size(); ++k) {
    const std::string name = "parameter " + std::to_string(k) + optim::group_name(index);
    optim::warn_of_a_likely_stack(group.params()[k], options_of(group, index), name);
  }
}

at::Tensor Dion::step(LossClosure closure) {
  at::Tensor loss;
  if (closure) {
    at::AutoGradMode enable_grad(true);
    loss = closure();
  }
  private_->refuse_if_broken();
  at::NoGradGuard no_grad;
  const auto& defaults = static_cast<const DionOptions&>(this->defaults());
  optim::check_groups(param_groups(), defaults);  // anyone may have written to them
  optim::Gathering gathering(state());
  for (std::size_t i = 0; i < param_groups().size(); ++i) {
    gathering.add(param_groups()[i], options_of(param_groups()[i], i));
  }
  engine::Step step(std::move(gathering.groups), defaults.nonfinite());
  engine::Report report;
  try {
    report = step.run();
  } catch (...) {
    if (step.wrote()) {
      private_->broken = "the last step failed after " + std::to_string(step.completed()) + " of " +
                         std::to_string(step.batches()) + " batches";
    }
    throw;
  }
  gathering.keep_new_states();
  DionStats& stats = private_->stats;
  stats.steps += 1;
  stats.skipped_steps += report.skipped;
  stats.nonfinite_entries += report.nonfinite;
  stats.batches = report.batches;
  stats.workspace_bytes = report.workspace_bytes;
  return loss;
}

const DionParamState& Dion::state_of(const at::Tensor& param) const {
  const auto found = state().find(param.unsafeGetTensorImpl());
  TORCH_CHECK_VALUE(found != state().end(), "torchdion::Dion: a parameter of shape ", param.sizes(),
                    " has no state yet: it was in no step, or is not of this optimizer");
  return static_cast<const DionParamState&>(*found->second);
}

const DionStats& Dion::stats() const { return private_->stats; }

}  // namespace torchdion
