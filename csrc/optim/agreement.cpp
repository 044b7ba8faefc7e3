#include "optim/agreement.h"

#include "engine/claims.h"
#include "engine/shapes.h"
#include "optim/capturable.h"
#include "optim/groups.h"
#include "optim/options.h"
#include "optim/parameters.h"
#include "words.h"

namespace torchdion::optim {

namespace {

std::string text(const Layout& layout) {
  std::string all;
  const auto add = [&](const char* side, const Axis& axis) {
    if (!axis.absent()) all += c10::str(all.empty() ? "" : ", ", side, " over '", axis.name(), "' (", axis.size, ")");
  };
  add("rows", layout.rows);
  add("columns", layout.cols);
  add("stack", layout.batch);
  add("replicas", layout.replicas);
  add("copies", layout.copies);
  return all;
}

// A parameter that takes part.
struct Shared {
  const at::Tensor& param;
  const Layout* layout;
  std::size_t group, index;

  // Axes of the ranks that hold it too, or other pieces of it.
  std::vector<Axis> axes() const {
    return {layout->rows, layout->cols, layout->batch, layout->replicas, layout->copies};
  }
  // Along which a missing gradient is zero: those of copies are averaged, so that all have one or none has.
  std::vector<Axis> axes_of_gradients() const { return {layout->rows, layout->cols, layout->batch, layout->replicas}; }
};

std::vector<Shared> parameters(const Optimizer& optimizer, const Layouts& layouts, bool with_local_ones) {
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

engine::Held held_of(const Optimizer& optimizer, const Shared& shared, const Handshake& handshake) {
  const at::Tensor& param = shared.param;
  engine::Held held{parameter_name(shared.index, shared.group),
                    shared.group,
                    param.is_nested() ? std::vector<int64_t>() : engine::whole_sizes(param, *shared.layout).vec(),
                    param.scalar_type(),
                    c10::str(param.device().type()),
                    text(*shared.layout),
                    param.requires_grad(),
                    {},
                    {},
                    shared.axes()};
  held.axes.push_back(handshake.copies);
  held.shared = shared.axes_of_gradients();
  if (param.grad().defined()) held.gradient = param.grad().scalar_type();
  const auto found = optimizer.state().find(param.unsafeGetTensorImpl());
  if (found == optimizer.state().end()) return held;
  const ParamState& state = ours(*found->second);
  if (!is_begun(state)) return held;
  held.steps = state.step().item<double>();
  for (const std::string& name : names_of(state)) {
    const at::Tensor& tensor = state.tensor(name);
    held.states.push_back({name, tensor.scalar_type(), state.whole_sizes(name)});
  }
  return held;
}

// Claims of the optimizer, its groups, then each parameter.
std::vector<engine::Claim> claims_of(const Optimizer& optimizer, const std::vector<Shared>& shared,
                                     const Handshake& handshake, bool decoupled) {
  const auto& defaults = static_cast<const Options&>(optimizer.defaults());
  std::vector<engine::GroupOptions> groups;
  std::vector<const engine::GroupOptions*> pointers;
  for (std::size_t i = 0; i < optimizer.param_groups().size(); ++i) {
    groups.push_back(values_of(options_of(optimizer.param_groups()[i], i), group_name(i)));
  }
  for (const engine::GroupOptions& group : groups) pointers.push_back(&group);
  std::vector<engine::Held> parameters;
  for (const Shared& one : shared) parameters.push_back(held_of(optimizer, one, handshake));
  const bool capturable = first_options(optimizer.param_groups(), defaults).capturable();
  return engine::claims_of(parameters, pointers,
                           {{"capturable", shown(capturable)}, {"momenta", decoupled ? "each replica's own" : "equal"}},
                           handshake.operation);
}

// Tells the other ranks alone: what is wrong here may be what a claim would be made of.
void refuse(const std::vector<Shared>& shared, const Handshake& handshake) {
  std::vector<engine::Claim> claims;
  for (const Shared& one : shared) {
    claims.push_back({parameter_name(one.index, one.group), {}, one.axes()});
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

// For a handshake about these parameters, whose claims come after others.
engine::Comparison comparison_of(const std::vector<Shared>& shared, const Handshake& handshake, std::size_t before) {
  engine::Comparison comparison{handshake.compares};
  if (!handshake.common) return comparison;
  comparison.copies = [&, before] {
    std::unordered_map<const void*, std::size_t> claims;
    for (std::size_t i = 0; i < shared.size(); ++i) claims[shared[i].param.unsafeGetTensorImpl()] = before + i;
    std::vector<engine::Copy> copies;
    for (const Common& common : handshake.common()) {
      copies.push_back({claims.at(common.param), common.axis, common.digest});
    }
    return copies;
  };
  return comparison;
}

Apart apart_of(const std::vector<Shared>& shared, const std::vector<bool>& apart) {
  if (apart.empty()) return {};
  Apart params{std::in_place};
  for (std::size_t i = 0; i < shared.size(); ++i) {
    if (apart[apart.size() - shared.size() + i]) params->insert(shared[i].param.unsafeGetTensorImpl());
  }
  return params;
}

}  // namespace

Apart agree(const Optimizer& optimizer, const Layouts& layouts, const Handshake& handshake,
            const std::function<bool()>& is_decoupled) {
  const std::vector<Shared> shared = parameters(optimizer, layouts, !handshake.copies.absent());
  // Asked first: what follows waits for devices and ranks.
  TORCH_CHECK(shared.empty() || !is_captured(shared.front().param), prefix(),
              "a CUDA graph cannot capture the first step that ranks take: take one before");
  std::vector<engine::Claim> claims;
  try {
    handshake.check();
    if (shared.empty()) return {};
    claims = claims_of(optimizer, shared, handshake, is_decoupled());
  } catch (...) {
    refuse(shared, handshake);
    throw;
  }
  engine::Provide provide;
  if (handshake.provide) {
    provide = [&](const auto& gradients) { handshake.provide(missing_of(shared, gradients)); };
  }
  const engine::Comparison comparison = comparison_of(shared, handshake, claims.size() - shared.size());
  return apart_of(shared, engine::agree(handshake.operation, /*refuses=*/false, claims, provide, comparison).apart);
}

}  // namespace torchdion::optim
