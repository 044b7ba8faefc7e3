// What an optimizer that averages over replicas does for them besides stepping.
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <map>

#include "comm/copies.h"
#include "engine/shapes.h"
#include "one_sentence.h"
#include "optim/agreement.h"
#include "optim/capturable.h"
#include "optim/parameters.h"
#include "optim/private.h"

namespace torchdion {

using optim::Replica;

namespace optim {

namespace {

// As the engine decides it: such matrices send P and R, and their momenta are each replica's own.
bool is_decoupled(const at::Tensor& param, const DionParamState& state, const Layout& layout,
                  const DionOptions& options) {
  if (layout.replicas.absent() || algorithm_of(param, options) != Algorithm::dion || param.numel() == 0) return false;
  if (!state.Q().defined()) return false;
  const std::vector<int64_t> sizes = engine::matrix_sizes(engine::whole_sizes(param, layout), form_of(options));
  const int64_t r = state.whole_Q().empty() ? state.Q().size(-1) : state.whole_Q().back();
  return engine::compresses(sizes.end()[-2], sizes.back(), r, layout);
}

}  // namespace

}  // namespace optim

// In an order that all ranks share.
std::vector<Replica> Dion::Private::replicas(const Dion& optimizer) const {
  std::vector<Replica> all;
  for (std::size_t i = 0; i < optimizer.param_groups().size(); ++i) {
    const DionOptions& options = optim::options_of(optimizer.param_groups()[i], i);
    const std::vector<at::Tensor>& params = optimizer.param_groups()[i].params();
    for (std::size_t k = 0; k < params.size(); ++k) {
      Replica replica{optim::parameter_name(k, i), &optim::layout_of(layouts, params[k]), {params[k].detach()}, {}};
      const auto found = optimizer.state().find(params[k].unsafeGetTensorImpl());
      if (found != optimizer.state().end()) {
        const auto& state = optim::ours(*found->second);
        const bool apart = optim::is_decoupled(params[k], state, *replica.layout, options);
        if (state.momentum().defined()) (apart ? replica.decoupled : replica.common).push_back(state.momentum());
        if (state.Q().defined()) replica.common.push_back(state.Q());
        if (state.variance().defined()) replica.common.push_back(state.variance());
      }
      all.push_back(std::move(replica));
    }
  }
  return all;
}

bool Dion::Private::may_be_decoupled(const Dion& optimizer) const {
  const auto& defaults = static_cast<const DionOptions&>(optimizer.defaults());
  if (decoupled || !optim::capturable_of(optimizer.param_groups(), defaults)) return decoupled;
  const auto averages = [](const auto& item) { return !item.second.replicas.absent(); };
  return std::any_of(layouts.begin(), layouts.end(), averages) && optim::steps_taken(optimizer) != steps_when_equal;
}

void Dion::Private::momenta_are_equal(const Dion& optimizer) {
  decoupled = false;
  const auto& defaults = static_cast<const DionOptions&>(optimizer.defaults());
  if (optim::capturable_of(optimizer.param_groups(), defaults)) steps_when_equal = optim::steps_taken(optimizer);
}

void Dion::Private::refuse_if_decoupled(const Dion& optimizer) const {
  if (!may_be_decoupled(optimizer)) return;
  for (const Replica& replica : replicas(optimizer)) {
    for (const at::Tensor& momentum : replica.decoupled) {
      TORCH_CHECK(!momentum.any().item<bool>(),
                  "torchdion::Dion: the momenta are each replica's own; call synchronize_for_checkpoint() on every "
                  "rank before state_dict()");
    }
  }
}

void Dion::Private::check(const Dion& optimizer) const {
  refuse_if_broken();
  replicas(optimizer);  // refuses options and states that are not ours
}

void Dion::Private::average_momenta(const Dion& optimizer) {
  if (!may_be_decoupled(optimizer)) return;
  const at::NoGradGuard no_grad;
  for (const Replica& replica : replicas(optimizer)) {
    for (const at::Tensor& momentum : replica.decoupled) comm::average(momentum, replica.layout->replicas);
  }
  momenta_are_equal(optimizer);
}

void Dion::synchronize_for_checkpoint() try {
  const auto averages = [](const auto& item) { return !item.second.replicas.absent(); };
  if (std::none_of(private_->layouts.begin(), private_->layouts.end(), averages)) return private_->refuse_if_broken();
  private_->agree(*this, {engine::Operation::synchronize_for_checkpoint, [&] { private_->check(*this); }});
  private_->average_momenta(*this);
} catch (const c10::Error&) {
  rethrow_in_one_sentence();
}

void Dion::check_replicas(const Axis& copies) const try {
  std::vector<Replica> all;
  private_->agree(*this, {engine::Operation::check_replicas, [&] { all = private_->replicas(*this); }, copies});
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
  TORCH_CHECK(names.empty(), "torchdion::Dion: replicas differ in ", names,
              "; synchronize_replicas() makes them equal");
} catch (const c10::Error&) {
  rethrow_in_one_sentence();
}

void Dion::synchronize_replicas(const Axis& copies) try {
  std::vector<Replica> all;
  private_->agree(*this, {engine::Operation::synchronize_replicas, [&] { all = private_->replicas(*this); }, copies});
  const at::NoGradGuard no_grad;
  for (const Replica& replica : all) {
    for (const at::Tensor& tensor : replica.common) {
      comm::copy_from_first(tensor, copies.absent() ? replica.layout->replicas : copies);
    }
  }
} catch (const c10::Error&) {
  rethrow_in_one_sentence();
}

}  // namespace torchdion
