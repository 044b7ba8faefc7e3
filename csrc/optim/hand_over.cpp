#include "optim/hand_over.h"

#include <ATen/ops/zeros.h>

#include <algorithm>

#include "engine/shapes.h"
#include "engine/state.h"
#include "engine/words.h"
#include "optim/capturable.h"
#include "optim/options.h"
#include "optim/parameters.h"
#include "optim/private.h"

namespace torchdion::optim {

namespace {

const at::Tensor& needed(const at::Tensor& tensor, const char* name, const at::Tensor& param) {
  TORCH_CHECK_VALUE(tensor.defined(), "torchdion::Dion: the state of ", engine::called(param), " lacks the tensor ",
                    name, "; is it of other options?");
  return tensor;
}

bool are_local(const std::vector<Layout>& layouts) {
  return std::all_of(layouts.begin(), layouts.end(), [](const Layout& layout) { return layout.is_local(); });
}

template <class Group>
void hand_over(Group& group, std::vector<Group>& groups) {
  if (are_local(group.layouts)) group.layouts.clear();
  if (!group.X.empty()) groups.push_back(std::move(group));
}

}  // namespace

void Gathering::add(const torch::optim::OptimizerParamGroup& group, std::size_t group_index) {
  const DionOptions& options = options_of(group, group_index);
  engine::DionGroup dion;
  engine::LionGroup lion;
  engine::AdamWGroup adamw;
  for (std::size_t k = 0; k < group.params().size(); ++k) {
    const at::Tensor& param = group.params()[k];
    const int64_t index = index_++;
    if (!gradient_of(param).defined()) continue;
    const Algorithm algorithm = algorithm_of(param, options);
    const DionParamState& state = state_of(param, options, index);
    TORCH_CHECK_VALUE(algorithm == Algorithm::dion || !state.Q().defined(), "torchdion::Dion: the algorithm of ",
                      parameter_name(k, group_index), " of shape ", param.sizes(), " must stay Algorithm::dion, whose ",
                      "state Q it has, got another algorithm or batch_dims in its group, or another shape");
    if (algorithm == Algorithm::dion) add_matrix(dion, param, state, options, parameter_name(k, group_index));
    if (algorithm == Algorithm::lion) append(lion, param, state);
    if (algorithm == Algorithm::adamw) {
      append(adamw, param, state);
      adamw.V.push_back(needed(state.variance(), "variance", param));
    }
  }
  const auto rates_on = [&](auto& to) {
    const Rates rates = to.X.empty() ? Rates{} : rates_of(options, to.X.front().device());
    to.multipliers = rates.multipliers;
    return rates;
  };
  const Rates of_dion = rates_on(dion), of_lion = rates_on(lion), of_adamw = rates_on(adamw);
  const auto [beta1, beta2] = betas_of(options);
  dion.hyper = {of_dion.lr,
                options.mu(),
                of_dion.weight_decay,
                options.maximize(),
                options.orthonormalize(),
                options.rcqr_oversample(),
                options.seed(),
                options.precision()};
  dion.skip_zero_gradients = options.skip_zero_gradients();
  dion.form = form_of(options);
  dion.orientation = options.orientation();
  lion.hyper = {of_lion.lr, beta1, beta2, of_lion.weight_decay, options.maximize()};
  adamw.hyper = {of_adamw.lr, beta1, beta2, of_adamw.weight_decay, options.epsilon(), options.maximize()};
  if (are_local(dion.layouts)) dion.whole_Q.clear();
  hand_over(dion, groups.dion);
  hand_over(lion, groups.lion);
  hand_over(adamw, groups.adamw);
}

at::Tensor Gathering::gradient_of(const at::Tensor& param) const {
  const auto missing = missing_.find(param.unsafeGetTensorImpl());
  if (param.grad().defined() || missing == missing_.end()) return param.grad();
  return at::zeros(param.sizes(), param.options().dtype(missing->second));
}

bool Gathering::averages() const {
  return std::any_of(groups.dion.begin(), groups.dion.end(), [](const engine::DionGroup& group) {
    return std::any_of(group.layouts.begin(), group.layouts.end(),
                       [](const Layout& layout) { return !layout.replicas.absent(); });
  });
}

void Gathering::keep_new_states() {
  for (auto& [param, state] : made_) states_[param] = std::move(state);
}

const DionParamState& Gathering::state_of(const at::Tensor& param, const DionOptions& options, int64_t index) {
  const auto found = states_.find(param.unsafeGetTensorImpl());
  if (found != states_.end()) return ours(*found->second);
  TORCH_CHECK(!is_captured(param), "torchdion::Dion: a CUDA graph cannot capture a parameter's first step: take one ",
              "before");
  made_.emplace_back(param.unsafeGetTensorImpl(), std::make_unique<DionParamState>());
  DionParamState& state = *made_.back().second;
  const auto zeros = [&](const std::optional<at::ScalarType>& dtype) {
    return at::zeros(param.sizes(), param.options().dtype(dtype.value_or(param.scalar_type())));
  };
  const at::TensorOptions counter = at::TensorOptions(at::kFloat).device(device_of_step(param, options));
  state.step(at::zeros({}, counter)).momentum(zeros(options.momentum_dtype()));
  const Algorithm algorithm = algorithm_of(param, options);
  if (algorithm == Algorithm::adamw) state.variance(zeros(options.variance_dtype()));
  if (algorithm == Algorithm::dion) {
    const engine::QStart start{options.orientation(), options.rank_fraction(), options.rank_multiple_of(),
                               options.seed(), index};
    const at::TensorOptions of_Q =
        at::TensorOptions(options.Q_dtype().value_or(param.scalar_type())).device(param.device());
    const Layout& layout = layout_of(layouts_, param);
    const at::IntArrayRef sizes = engine::whole_sizes(param, layout);
    state.Q(engine::start_of_Q(sizes, form_of(options), start, of_Q, layout));
    if (!layout.is_local()) state.whole_Q(engine::sizes_of_Q(sizes, form_of(options), start));
  }
  return state;
}

void Gathering::add_matrix(engine::DionGroup& group, const at::Tensor& param, const DionParamState& state,
                           const DionOptions& options, const std::string& name) {
  append(group, param, state);
  const at::Tensor& Q = needed(state.Q(), "Q", param);
  group.Q.push_back(Q);
  group.whole_Q.push_back(state.whole_Q().empty() ? Q.sizes().vec() : state.whole_Q());
  const Layout& layout = group.layouts.back();
  if (layout.is_local() || options.orthonormalize() != Orthonormalize::qr) return;
  const engine::ParameterShape shape = engine::shape_of(group, group.X.size() - 1);  // Q's own orientation counts
  check_orthonormalize(layout, shape.right ? Orientation::right : Orientation::left, options, name);
}

template <class Group>
void Gathering::append(Group& group, const at::Tensor& param, const DionParamState& state) {
  const Layout& layout = layout_of(layouts_, param);
  group.X.push_back(param);
  group.G.push_back(gradient_of(param));
  group.M.push_back(needed(state.momentum(), "momentum", param));
  group.steps.push_back(needed(state.step(), "step", param));
  group.layouts.push_back(layout);
}

}  // namespace torchdion::optim
