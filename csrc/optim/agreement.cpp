#include "optim/agreement.h"

#include <limits>
#include <map>
#include <sstream>

#include "engine/shapes.h"
#include "engine/state.h"
#include "optim/capturable.h"
#include "optim/names.h"
#include "optim/parameters.h"
#include "optim/private.h"

namespace torchdion::optim {

namespace {

using engine::Claim;

template <class Value>
std::string text(const Value& value) {
  std::ostringstream stream;
  stream.precision(std::numeric_limits<double>::max_digits10);
  stream << value;
  return stream.str();
}

std::string text(const Layout& layout) {
  std::string all;
  const auto add = [&](const char* side, const Axis& axis) {
    if (!axis.absent()) all += c10::str(all.empty() ? "" : ", ", side, " over '", axis.name(), "' (", axis.size, ")");
  };
  add("rows", layout.rows);
  add("columns", layout.cols);
  add("stack", layout.batch);
  add("replicas", layout.replicas);
  return all;
}

// A parameter that takes part.
struct Shared {
  const at::Tensor& param;
  const Layout* layout;
  std::size_t group, place;

  std::vector<Axis> axes() const { return {layout->rows, layout->cols, layout->batch, layout->replicas}; }
};

std::vector<Shared> parameters(const Dion& optimizer, const Layouts& layouts, bool with_local_ones) {
  std::vector<Shared> shared;
  for (std::size_t i = 0; i < optimizer.param_groups().size(); ++i) {
    const std::vector<at::Tensor>& params = optimizer.param_groups()[i].params();
    for (std::size_t k = 0; k < params.size(); ++k) {
      const Layout& layout = layout_of(layouts, params[k]);
      if (with_local_ones || !layout.is_local()) shared.push_back({params[k], &layout, i, k});
    }
  }
  return shared;
}

// What there is of a state, for ranks that are about to send it.
std::string text_of_state(const DionParamState& state) {
  std::string all = "step";
  const auto add = [&](const char* name, const at::Tensor& tensor) {
    if (tensor.defined()) all += c10::str(", ", name, " of ", shown(tensor.scalar_type()));
  };
  add("momentum", state.momentum());
  add("variance", state.variance());
  add("Q", state.Q());
  if (!state.Q().defined()) return all;
  return all + " and shape " + text(state.whole_Q().empty() ? state.Q().sizes() : at::IntArrayRef(state.whole_Q()));
}

// What a step uses: dtypes, and the sizes of Q; what a first step makes, where there is no state.
std::string text_of_stepped_state(const DionParamState& state, const Shared& shared, const DionOptions& options) {
  const at::Tensor& param = shared.param;
  const auto dtype = [&](const at::Tensor& tensor, const std::optional<at::ScalarType>& configured) {
    return shown(tensor.defined() ? tensor.scalar_type() : configured.value_or(param.scalar_type()));
  };
  std::string all = "momentum of " + dtype(state.momentum(), options.momentum_dtype());
  const Algorithm algorithm = algorithm_of(param, options);
  if (algorithm == Algorithm::adamw) all += ", variance of " + dtype(state.variance(), options.variance_dtype());
  if (algorithm != Algorithm::dion) return all;
  std::vector<int64_t> sizes = state.whole_Q();
  if (sizes.empty() && state.Q().defined()) sizes = state.Q().sizes().vec();
  if (sizes.empty()) {
    const engine::QStart start{options.orientation(), options.rank_fraction(), options.rank_multiple_of(),
                               options.seed()};
    sizes = engine::sizes_of_Q(engine::whole_sizes(param, *shared.layout), form_of(options), start);
  }
  return all + ", Q of " + dtype(state.Q(), options.Q_dtype()) + " and shape " + text(at::IntArrayRef(sizes));
}

Claim claim_of(const Dion& optimizer, const Shared& shared, engine::Operation operation) {
  const at::Tensor& param = shared.param;
  const DionOptions& options = options_of(optimizer.param_groups()[shared.group], shared.group);
  const auto found = optimizer.state().find(param.unsafeGetTensorImpl());
  const bool is_step = operation == engine::Operation::step, has_state = found != optimizer.state().end();
  const DionParamState none;
  const DionParamState& state = has_state ? ours(*found->second) : none;
  // A step makes what is not there. What else ranks do, they do with what is.
  const std::string absent = is_step ? shown(0.0) : "none";
  return {parameter_name(shared.place, shared.group),
          {{"shape", text(engine::whole_sizes(param, *shared.layout))},
           {"dtype", shown(param.scalar_type())},
           {"kind of device", text(param.device().type())},
           {"layout", text(*shared.layout)},
           {"requires_grad", shown(param.requires_grad())},
           {"steps taken", has_state ? shown(state.step().item<double>()) : absent},
           {"state", is_step ? text_of_stepped_state(state, shared, options) : text_of_state(state)}},
          shared.axes()};
}

// Of the optimizer and its groups, then of each parameter.
std::vector<Claim> claims_of(const Dion& optimizer, const std::vector<Shared>& shared, const Handshake& handshake,
                             bool decoupled) {
  const auto& defaults = static_cast<const DionOptions&>(optimizer.defaults());
  Claim all{"the optimizer", {{"momenta", decoupled ? "each replica's own" : "equal"}}, {}, /*is_parameter=*/false};
  all.properties.emplace_back("nonfinite", shown(nonfinite_of(optimizer.param_groups(), defaults)));
  std::map<std::size_t, Claim> groups;
  std::vector<Claim> parameters;
  for (const Shared& one : shared) {
    const auto [group, is_new] = groups.try_emplace(one.group);
    if (is_new) {
      group->second.name = "parameter group " + std::to_string(one.group);
      group->second.is_parameter = false;
      const DionOptions& options = options_of(optimizer.param_groups()[one.group], one.group);
      group->second.properties = shown_options(options);
    }
    parameters.push_back(claim_of(optimizer, one, handshake.operation));
    const std::vector<Axis> axes = one.axes();
    parameters.back().axes.push_back(handshake.copies);
    for (Claim* claim : {&group->second, &all}) {
      claim->axes.insert(claim->axes.end(), parameters.back().axes.begin(), parameters.back().axes.end());
    }
    if (handshake.operation != engine::Operation::step) continue;
    if (one.param.grad().defined()) parameters.back().gradient = one.param.grad().scalar_type();
    parameters.back().shared = axes;
  }
  std::vector<Claim> claims{std::move(all)};
  for (auto& [index, group] : groups) claims.push_back(std::move(group));
  claims.insert(claims.end(), parameters.begin(), parameters.end());
  return claims;
}

// Nothing but who is to hear of it: what is wrong may be just what a claim would be made of.
void refuse(const std::vector<Shared>& shared, const Handshake& handshake) {
  std::vector<Claim> claims;
  for (const Shared& one : shared) {
    claims.push_back({parameter_name(one.place, one.group), {}, one.axes()});
    claims.back().axes.push_back(handshake.copies);
  }
  try {
    engine::agree(handshake.operation, /*refuses=*/true, claims);
  } catch (const std::exception&) {  // this rank's own error says more
  }
}

Missing missing_of(const std::vector<Shared>& shared, const std::vector<std::optional<at::ScalarType>>& gradients) {
  const std::size_t before = gradients.size() - shared.size();
  Missing missing;
  for (std::size_t i = 0; i < shared.size(); ++i) {
    const bool is_missing = gradients[before + i] && !shared[i].param.grad().defined();
    if (is_missing) missing.emplace(shared[i].param.unsafeGetTensorImpl(), *gradients[before + i]);
  }
  return missing;
}

}  // namespace

void agree(const Dion& optimizer, const Layouts& layouts, const Handshake& handshake,
           const std::function<bool()>& is_decoupled) {
  const std::vector<Shared> shared = parameters(optimizer, layouts, !handshake.copies.absent());
  // Asked first: what follows waits for devices and ranks.
  TORCH_CHECK(shared.empty() || !is_captured(shared.front().param),
              "torchdion::Dion: a CUDA graph cannot capture the first step that ranks take: take one before");
  std::vector<Claim> claims;
  try {
    handshake.check();
    if (shared.empty()) return;
    claims = claims_of(optimizer, shared, handshake, is_decoupled());
  } catch (...) {
    refuse(shared, handshake);
    throw;
  }
  engine::Provide provide;
  if (handshake.provide) {
    provide = [&](const auto& gradients) { handshake.provide(missing_of(shared, gradients)); };
  }
  engine::agree(handshake.operation, /*refuses=*/false, claims, provide);
}

}  // namespace torchdion::optim
