#include "engine/core.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "engine/checks.h"
#include "torch_versions.h"
#include "words.h"

namespace torchdion::engine {

namespace {

// Calls f(tensor) for all that views hold, in one order.
template <class F>
void for_each_tensor(std::vector<ParameterGroup>& groups, const F& f) {
  for (ParameterView& view : all_parameters(groups)) {
    f(view.param);
    f(view.tensor);
    f(view.state.step);
    for (StateTensor& one : view.state.tensors) f(one.tensor);
  }
}

}  // namespace

Core::Hold::Hold(Core& core) : core_(core), is_outer_(!core.is_held_) {
  if (!is_outer_) return;
  core.is_held_ = true;
  if (core.tensors_.empty()) return;
  auto weak = core.tensors_.begin();
  for_each_tensor(core.groups, [&](at::Tensor& tensor) {
    const bool was_defined = weak->_unsafe_get_target() != at::UndefinedTensorImpl::singleton();
    if (was_defined) tensor = at::Tensor(weak->lock());
    core.has_lost_ = core.has_lost_ || tensor.defined() != was_defined;
    ++weak;
  });
  core.tensors_.clear();
}

Core::Hold::~Hold() {
  if (!is_outer_) return;
  core_.is_held_ = false;
  core_.prepared_ = {};  // of a step that was refused
  core_.tensors_.clear();
  for_each_tensor(core_.groups, [&](at::Tensor& tensor) {
    core_.tensors_.emplace_back(tensor.getIntrusivePtr());
    const bool is_small = tensor.defined() && !tensor.is_nested() && tensor.numel() == 0;
    if (!is_small) tensor.reset();  // a piece without elements may be a view that nobody else holds
  });
  core_.scaling_ = {};
}

bool Core::is_captured() const {
  return std::ranges::any_of(groups, [](const ParameterGroup& group) {
    return !group.parameters.empty() && engine::is_captured(group.parameters.front().tensor);
  });
}

void Core::update(Front& front, Operation operation) {
  front.update(*this, operation);
  resolve(groups);
}

void Core::step(Front& front) {
  const at::NoGradGuard no_grad;
  const Hold hold(*this);
  prepared_ = {};
  try {
    refuse_if_broken();
    update(front, Operation::step);
    for (const ParameterGroup& group : groups) check_parameters(group);
    refuse_other_holders();
    scaling_ = front.scaling();
    prepare(front, is_alone() ? missing_when_alone() : Missing());
  } catch (...) {
    // A captured step has no time for what ranks have to say, once they have compared their parameters.
    if (!is_alone()) refuse(Operation::step, {});
    throw;
  }
  if (!is_alone()) {
    Missing missing_here;
    const auto provide = [&](const Missing& missing) {
      missing_here = missing;
      if (!missing.empty()) prepare(front, missing);
    };
    if (const auto apart = agree(Operation::step, {}, provide, !compared_)) {
      prepared_ = {};  // with its copies of weights that will be others, and its memory
      start_alike(front, *apart);
      prepare(front, missing_here);
    }
    agreed_ = compared_ = true;
  }
  run(front);
}

void Core::prepare(Front& front, const Missing& missing) {
  prepared_.step = std::make_unique<Step>(gather_inputs(front, missing), nonfinite, scaling_, &known_);
  if (prepared_.step->in_flight() && !front.opens_groups()) prepared_.step->in_flight()->check_axes();
}

void Core::keep_made(Front& front) {
  for (auto& [view, state] : prepared_.made) {
    view->state = std::move(state);
    front.keep(*view);
  }
}

void Core::make_states(Front& front) {
  const Hold hold(*this);
  update(front, Operation::step);
  gather_inputs(front, {});
  keep_made(front);
  prepared_ = {};
}

void Core::run(Front& front) {
  Step& step = *prepared_.step;
  if (step.in_flight() && front.opens_groups()) front.open_groups(step.in_flight()->axes_without_group());
  may_decouple(prepared_.averages);
  const bool is_recorded = is_captured();
  try {
    Report report = step.run();
    in_flight_ = step.take_in_flight();
    keep_made(front);
    if (!report.skipped) front.written(prepared_.updated);
    count(std::move(report), is_recorded);
    prepared_ = {};
  } catch (...) {
    if (step.wrote() && !is_recorded) {
      in_flight_ = step.take_in_flight();
      try {
        flush();
      } catch (const std::exception&) {  // the first error says more
      }
      memory_.broken = c10::str("the last step failed after ", step.completed(), " of ", step.batches(), " batches");
    }
    prepared_ = {};
    throw;
  }
}

void Core::count(Report report, bool is_recorded) {
  memory_.counts.steps += 1;
  memory_.counts.batches = report.batches;
  memory_.counts.workspace_bytes = report.workspace_bytes;
  memory_.counts.expected_traffic = std::move(report.expected_traffic);
  if (is_recorded) return;  // a replay would not add to the rest
  memory_.counts.skipped.known += report.skipped;
  if (report.left_out.defined()) memory_.counts.skipped.add(report.left_out);
  memory_.counts.nonfinite.add(report.nonfinite);
  memory_.counts.without_signal.add(report.without_signal);
  memory_.counts.in_margin.add(report.in_margin);
}

void Core::flush() {
  const std::unique_ptr<InFlight> ending = std::move(in_flight_);
  if (!ending) return;
  try {
    const Report report = ending->wait();
    memory_.counts.without_signal.add(report.without_signal);
    memory_.counts.in_margin.add(report.in_margin);
  } catch (...) {
    memory_.broken = c10::str("what the last step had left in flight failed after ", ending->completed(), " of ",
                              ending->batches(), " batches");
    throw;
  }
}

void Core::refuse_if_broken() {
  flush();
  TORCH_CHECK(memory_.broken.empty(), prefix(), memory_.broken, "; load a checkpoint");
}

std::vector<ParameterState> Core::states(Front& front) {
  const Hold hold(*this);
  refuse_if_broken();
  update(front, Operation::check_replicas);
  refuse_if_decoupled();
  std::vector<ParameterState> states;
  for (const ParameterView& view : all_parameters(groups)) states.push_back(view.state);
  return states;
}

void Core::loaded(Front& front, bool capturable) {
  const Hold hold(*this);
  memory_.broken.clear();
  parameters_changed();
  if (capturable) update(front, Operation::check_replicas);
  momenta_are_equal();
}

// Where ranks exchange no messages: zero are the missing gradients of parameters that replicas have stepped.
Missing Core::missing_when_alone() const {
  Missing missing;
  for (const ParameterView& view : all_parameters(groups)) {
    const bool is_due = !view.param.grad().defined() && view.param.requires_grad() && view.state.is_begun();
    if (!is_due || view.layout.replicas.absent()) continue;
    missing.emplace(view.param.unsafeGetTensorImpl(), torch_versions::dtype_of_gradient(view.param));
  }
  return missing;
}

std::vector<const ParameterView*> Core::shared(const Axis& copies) const {
  std::vector<const ParameterView*> all;
  for (const ParameterView& view : all_parameters(groups)) {
    const bool is_alone = copies.absent() && std::ranges::all_of(view.axes, &Axis::absent);
    if (!is_alone) all.push_back(&view);
  }
  return all;
}

// Tells the other ranks alone: what is wrong here may be what a claim would be made of.
void Core::refuse(Operation operation, const Axis& copies) const {
  const std::vector<const ParameterView*> parameters = shared(copies);
  if (parameters.empty() || engine::is_captured(parameters.front()->param)) return;
  std::vector<Claim> claims;
  for (const ParameterView* view : parameters) {
    claims.push_back({view->name, {}, view->axes});
    claims.back().axes.push_back(copies);
  }
  try {
    engine::agree(operation, /*refuses=*/true, claims);
  } catch (const std::exception&) {  // this rank's own error says more
  }
}

std::unique_ptr<std::unordered_set<const void*>> Core::agree(Operation operation, const Axis& copies,
                                                             const std::function<void(const Missing&)>& provide,
                                                             bool compares) {
  const std::vector<const ParameterView*> parameters = shared(copies);
  if (parameters.empty()) return nullptr;
  // Asked first: what follows waits for devices and ranks.
  TORCH_CHECK(!engine::is_captured(parameters.front()->tensor), prefix(),
              "a CUDA graph cannot capture the first step that ranks take: take one before");
  const std::vector<Claim>* made = nullptr;
  try {
    made = &claims_.of(parameters, groups,
                       {{"grad_scale", scaling_.scale.defined() ? "set" : "none"},
                        {"found_inf", scaling_.found_inf.defined() ? "set" : "none"},
                        {"capturable", shown(capturable)},
                        {"momenta", may_be_decoupled() ? "each replica's own" : "equal"}},
                       operation, copies);
  } catch (...) {
    claims_ = {};
    refuse(operation, copies);
    throw;
  }
  const std::vector<Claim>& claims = *made;
  const std::size_t first = claims.size() - parameters.size();
  Provide of_claims;
  if (provide) {
    of_claims = [&](const std::vector<std::optional<at::ScalarType>>& gradients) {
      Missing missing;
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        const at::Tensor& param = parameters[i]->param;
        const std::optional<at::ScalarType> dtype = gradients[first + i];
        if (dtype && !param.grad().defined()) missing.emplace(param.unsafeGetTensorImpl(), *dtype);
      }
      provide(missing);
    };
  }
  Comparison comparison{compares};
  if (operation == Operation::step) comparison.copies = [&] { return copies_of(parameters, first); };
  const std::vector<bool> apart = engine::agree(operation, /*refuses=*/false, claims, of_claims, comparison).apart;
  if (apart.empty()) return nullptr;
  auto params = std::make_unique<std::unordered_set<const void*>>();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (apart[first + i]) params->insert(parameters[i]->param.unsafeGetTensorImpl());
  }
  return params;
}

void Core::begin(Front& front, Operation operation, const Axis& copies, const std::function<void()>& prepare) {
  try {
    flush();
    update(front, operation);
    prepare();
  } catch (...) {
    refuse(operation, copies);
    throw;
  }
  agree(operation, copies);
}

}  // namespace torchdion::engine
