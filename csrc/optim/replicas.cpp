// What an optimizer that averages over replicas does for them besides stepping.
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <map>

#include "comm/copies.h"
#include "comm/digest.h"
#include "engine/shapes.h"
#include "linalg/memory.h"
#include "one_sentence.h"
#include "optim/agreement.h"
#include "optim/capturable.h"
#include "optim/groups.h"
#include "optim/options.h"
#include "optim/owners.h"
#include "optim/parameters.h"
#include "optim/private.h"
#include "words.h"

namespace torchdion {

using optim::Replica;

namespace optim {

namespace {

// The states of which each replica has its own.
std::vector<std::string> decoupled_states(const at::Tensor& param, const ParamState& state, const Layout& layout,
                                          const Options& options) {
  const algorithms::Algorithm& algorithm = algorithm_of(param, options);
  std::vector<int64_t> ranks;
  for (const std::size_t k : algorithms::factors_of(algorithm)) {
    const std::string name(algorithm.states[k].name);
    if (!state.tensor(name).defined()) return {};
    ranks.push_back(state.whole_sizes(name).back());
  }
  if (layout.replicas.absent() || param.numel() == 0) return {};
  return engine::decoupled_states(algorithm, engine::whole_sizes(param, layout), ranks, values_of(options, "").values,
                                  layout);
}

WhoseStates whose_states(const Options& options) {
  return {options.algorithm(), options.scalar_algorithm(), options.batch_dims(), options.factorization()};
}

void copy_from_first(const Replica& replica, const Axis& axis) {
  const at::NoGradGuard no_grad;
  for (const at::Tensor& tensor : replica.common) comm::copy_from_first(tensor, axis);
}

}  // namespace

}  // namespace optim

// In an order that all ranks share.
std::vector<Replica> Optimizer::Private::replicas(const Optimizer& optimizer) const {
  std::vector<Replica> all;
  const optim::Parts parts = optim::parts_of(optimizer.param_groups(), layouts);
  for (std::size_t i = 0; i < optimizer.param_groups().size(); ++i) {
    const Options& options = optim::options_of(optimizer.param_groups()[i], i);
    const std::vector<at::Tensor>& params = optimizer.param_groups()[i].params();
    for (std::size_t k = 0; k < params.size(); ++k) {
      if (optim::is_left_alone(params[k]) && !linalg::has_memory(params[k])) continue;  // nothing to compare
      const Layout& layout = optim::layout_of(layouts, params[k]);
      const optim::Part* part = optim::part_of(parts, params[k]);
      Replica replica{params[k].unsafeGetTensorImpl(),     optim::parameter_name(k, i), &layout,
                      part ? part->axis : layout.replicas, {params[k].detach()},        {}};
      const auto found = optimizer.state().find(params[k].unsafeGetTensorImpl());
      if (found != optimizer.state().end()) {
        const auto& state = optim::ours(*found->second);
        replica.has_stepped = state.tensor("step").defined() && state.step().item<double>() > 0;
        const std::vector<std::string> own = optim::decoupled_states(params[k], state, *replica.layout, options);
        for (const algorithms::State& declared : optim::algorithm_of(params[k], options).states) {
          const at::Tensor& tensor = state.tensor(std::string(declared.name));
          if (!tensor.defined() || part) continue;  // what has an owner has no copies
          const bool apart = std::find(own.begin(), own.end(), declared.name) != own.end();
          (apart ? replica.decoupled : replica.common).push_back(tensor);
        }
      }
      all.push_back(std::move(replica));
    }
  }
  return all;
}

bool Optimizer::Private::may_be_decoupled(const Optimizer& optimizer) const {
  const auto& defaults = static_cast<const Options&>(optimizer.defaults());
  if (decoupled || !optim::first_options(optimizer.param_groups(), defaults).capturable()) return decoupled;
  const auto averages = [](const auto& item) { return !item.second.replicas.absent(); };
  return std::any_of(layouts.begin(), layouts.end(), averages) && optim::steps_taken(optimizer) != steps_when_equal;
}

void Optimizer::Private::may_decouple(const Optimizer& optimizer, bool averages) {
  decoupled = decoupled || averages;
  if (!decoupled) return;
  decoupled_as.clear();
  for (std::size_t i = 0; i < optimizer.param_groups().size(); ++i) {
    decoupled_as.push_back(optim::whose_states(optim::options_of(optimizer.param_groups()[i], i)));
  }
}

void Optimizer::Private::refuse_other_holders(const Optimizer& optimizer) const {
  const std::size_t known = decoupled ? std::min(decoupled_as.size(), optimizer.param_groups().size()) : 0;
  for (std::size_t i = 0; i < known; ++i) {
    const Options& now = optim::options_of(optimizer.param_groups()[i], i);
    if (optim::whose_states(now) == decoupled_as[i]) continue;
    Options then = now;
    std::tie(then.algorithm(), then.scalar_algorithm(), then.batch_dims(), then.factorization()) = decoupled_as[i];
    const std::vector<at::Tensor>& params = optimizer.param_groups()[i].params();
    for (std::size_t k = 0; k < params.size(); ++k) {
      const auto found = optimizer.state().find(params[k].unsafeGetTensorImpl());
      if (found == optimizer.state().end()) continue;
      const auto& state = optim::ours(*found->second);
      const Layout& layout = optim::layout_of(layouts, params[k]);
      const std::vector<std::string> still = optim::decoupled_states(params[k], state, layout, now);
      const algorithms::Algorithm &old = optim::algorithm_of(params[k], then),
                                  &other = optim::algorithm_of(params[k], now);
      for (const std::string& own : optim::decoupled_states(params[k], state, layout, then)) {
        const bool stays = std::find(still.begin(), still.end(), own) != still.end();
        if (stays || algorithms::index_of(other, own) < 0) continue;
        const bool is_another = &other != &old;
        const algorithms::Option& changed = *algorithms::option(is_another ? "algorithm" : "factorization");
        const auto value = [&](const algorithms::Algorithm& algorithm, const Options& options) {
          if (is_another) return algorithms::shown(changed, algorithm.name);
          return algorithms::shown(changed, optim::values_of(options, "").values.at(changed.name));
        };
        TORCH_CHECK_VALUE(false, prefix(), "the ", changed.name, " of ", optim::parameter_name(k, i), " must stay ",
                          value(old, then), " while its ", own, " is each replica's own, got ", value(other, now),
                          "; call synchronize_for_checkpoint() on every rank before it changes");
      }
    }
  }
}

void Optimizer::Private::momenta_are_equal(const Optimizer& optimizer) {
  decoupled = false;
  decoupled_as.clear();
  const auto& defaults = static_cast<const Options&>(optimizer.defaults());
  if (optim::first_options(optimizer.param_groups(), defaults).capturable())
    steps_when_equal = optim::steps_taken(optimizer);
}

void Optimizer::Private::refuse_if_decoupled(const Optimizer& optimizer) const {
  if (!may_be_decoupled(optimizer)) return;
  for (const Replica& replica : replicas(optimizer)) {
    for (const at::Tensor& momentum : replica.decoupled) {
      TORCH_CHECK(!momentum.any().item<bool>(), prefix(),
                  "the momenta are each replica's own; call synchronize_for_checkpoint() on every "
                  "rank before state_dict()");
    }
  }
}

void Optimizer::Private::check(const Optimizer& optimizer) {
  refuse_if_broken();
  refuse_other_holders(optimizer);
  replicas(optimizer);  // refuses options and states that are not ours
}

void Optimizer::Private::average_momenta(const Optimizer& optimizer) {
  if (!may_be_decoupled(optimizer)) return;
  const at::NoGradGuard no_grad;
  for (const Replica& replica : replicas(optimizer)) {
    for (const at::Tensor& momentum : replica.decoupled) comm::average(momentum, replica.layout->replicas);
  }
  momenta_are_equal(optimizer);
}

void Optimizer::synchronize_for_checkpoint() try {
  const Speaking speaking(held().words(*this));
  const auto averages = [](const auto& item) { return !item.second.replicas.absent(); };
  if (std::none_of(held().layouts.begin(), held().layouts.end(), averages)) return held().refuse_if_broken();
  held().agree(*this, {engine::Operation::synchronize_for_checkpoint, [&] { held().check(*this); }});
  held().average_momenta(*this);
} catch (const c10::Error&) {
  rethrow_in_one_sentence();
}

void Optimizer::check_replicas(const Axis& copies) const try {
  const Speaking speaking(held().words(*this));
  std::vector<Replica> all;
  const auto prepare = [&] {
    held().flush();
    all = held().replicas(*this);
  };
  held().agree(*this, {engine::Operation::check_replicas, prepare, copies});
  std::map<const void*, std::vector<const Replica*>> lines;  // which of them have the same replicas to compare with
  std::vector<const Axis*> axes;                             // in an order that all ranks share
  for (const Replica& replica : all) {
    const Axis& axis = copies.absent() ? replica.layout->replicas : copies;
    if (axis.absent()) continue;
    std::vector<const Replica*>& members = lines[axis.line.get()];
    if (members.empty()) axes.push_back(&axis);
    members.push_back(&replica);
  }
  std::string names;
  for (const Axis* axis : axes) {
    std::vector<at::Tensor> tensors;
    std::vector<const std::string*> owners;
    for (const Replica* replica : lines[axis->line.get()]) {
      tensors.insert(tensors.end(), replica->common.begin(), replica->common.end());
      owners.resize(tensors.size(), &replica->name);
    }
    const std::vector<bool> different = comm::differing(tensors, *axis);
    const std::string* last = nullptr;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (!different[i] || owners[i] == last) continue;
      last = owners[i];
      names += (names.empty() ? "" : ", ") + *last;
    }
  }
  TORCH_CHECK(names.empty(), prefix(), "replicas differ in ", names, "; synchronize_replicas() makes them equal");
} catch (const c10::Error&) {
  rethrow_in_one_sentence();
}

std::vector<optim::Common> Optimizer::Private::common(const Optimizer& optimizer) const {
  std::vector<optim::Common> all;
  for (const Replica& replica : replicas(optimizer)) {
    if (replica.equals.absent()) continue;
    std::string digests;  // none of a tensor without memory, which has no numbers to compare
    const std::size_t compared = replica.has_stepped ? replica.common.size() : 1;  // the parameter is the first
    for (const at::Tensor& tensor : at::TensorList(replica.common).slice(0, compared)) {
      digests += c10::str(linalg::has_memory(tensor) ? comm::digest_of(tensor) : 0, '\n');
    }
    all.push_back({replica.param, replica.equals, comm::digest(digests)});
  }
  return all;
}

void Optimizer::Private::start_alike(const Optimizer& optimizer, const std::unordered_set<const void*>& params) {
  std::vector<Replica> all;
  const auto prepare = [&] {
    std::vector<std::string> names;
    for (Replica& replica : replicas(optimizer)) {
      if (!params.count(replica.param)) continue;
      names.push_back(replica.name);
      all.push_back(std::move(replica));
    }
    if (!names.empty()) TORCH_WARN(engine::sentence_of_apart(names));
  };
  agree(optimizer, {engine::Operation::synchronize_replicas, prepare});
  for (const Replica& replica : all) optim::copy_from_first(replica, replica.equals);
}

void Optimizer::synchronize_replicas(const Axis& copies) try {
  const Speaking speaking(held().words(*this));
  std::vector<Replica> all;
  const auto prepare = [&] {
    held().flush();
    all = held().replicas(*this);
  };
  held().agree(*this, {engine::Operation::synchronize_replicas, prepare, copies});
  for (const Replica& replica : all) {
    optim::copy_from_first(replica, copies.absent() ? replica.layout->replicas : copies);
  }
} catch (const c10::Error&) {
  rethrow_in_one_sentence();
}

}  // namespace torchdion
