// What an optimizer that averages over replicas does for them besides stepping.
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "comm/blocking.h"
#include "engine/core.h"
#include "engine/shapes.h"
#include "linalg/memory.h"
#include "words.h"

namespace torchdion::engine {

namespace {

bool contains(const std::vector<std::string>& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

void copy_from_first(const Replica& replica, const Axis& axis) {
  const at::NoGradGuard no_grad;
  for (const at::Tensor& tensor : replica.common) comm::copy_from_first(tensor, axis);
}

std::vector<const ParameterView*> views_of(const std::vector<Replica>& replicas) {
  std::vector<const ParameterView*> views;
  for (const Replica& replica : replicas) views.push_back(replica.view);
  return views;
}

bool has_stepped(const ParameterState& state) { return state.step.defined() && state.step.item<double>() > 0; }

}  // namespace

// In an order that all ranks share.
std::vector<Replica> Core::replicas(bool have_bytes) {
  std::vector<Replica> all;
  for (ParameterView& view : all_parameters(groups)) {
    const bool has_bytes = linalg::has_memory(view.tensor);
    if (is_left_alone(view.param) && !has_bytes) continue;  // nothing to compare
    TORCH_CHECK_VALUE(has_bytes || !have_bytes, prefix(), view.name, " and its state must have memory, got ",
                      view.tensor.device(), " without any");
    const Axis& equals = view.part ? view.part->axis : view.layout.replicas;
    Replica replica{&view, equals, {has_bytes ? view.tensor.detach() : view.tensor}, {}};
    if (view.state.is_begun()) {
      check_state(view);
      const std::vector<std::string> own = decoupled_states(view, *view.algorithm, groups[view.group].options.values);
      for (const StateTensor& state : view.state.tensors) {
        if (view.part) continue;  // what has an owner has no copies
        (contains(own, state.name) ? replica.decoupled : replica.common).push_back(state.tensor);
      }
    }
    all.push_back(std::move(replica));
  }
  return all;
}

std::vector<std::string> Core::decoupled_states_of(Front& front, const at::Tensor& param) {
  const Hold hold(*this);
  flush();
  update(front, Operation::check_replicas);
  for (const ParameterView& view : all_parameters(groups)) {
    if (view.param.is_same(param)) return decoupled_states(view, *view.algorithm, groups[view.group].options.values);
  }
  TORCH_CHECK_VALUE(false, prefix(), "param must be a parameter of this optimizer, got another tensor");
}

bool Core::averages() const {
  return std::ranges::any_of(all_parameters(groups),
                             [](const ParameterView& view) { return !view.layout.replicas.absent(); });
}

double Core::steps_taken() const {
  double steps = 0;
  for (const ParameterView& view : all_parameters(groups)) {
    if (view.state.step.defined()) steps += view.state.step.item<double>();
  }
  return steps;
}

// Steps that a graph replayed count too; only the state knows of them.
bool Core::may_be_decoupled() const {
  if (memory_.decoupled || !capturable) return memory_.decoupled;
  return averages() && steps_taken() != memory_.steps_when_equal;
}

void Core::may_decouple(bool averages) {
  memory_.decoupled = memory_.decoupled || averages;
  if (!memory_.decoupled) return;
  memory_.decoupled_as.clear();
  for (const ParameterGroup& group : groups) {
    WhoseStates said;
    for (std::size_t i = 0; i < kSayWhose.size(); ++i) said[i] = group.options.values.at(kSayWhose[i]);
    memory_.decoupled_as.push_back(said);
  }
}

void Core::momenta_are_equal() {
  memory_.decoupled = false;
  memory_.decoupled_as.clear();
  if (capturable) memory_.steps_when_equal = steps_taken();
}

void Core::refuse_other_holders() const {
  const std::size_t known = memory_.decoupled ? std::min(memory_.decoupled_as.size(), groups.size()) : 0;
  for (std::size_t g = 0; g < known; ++g) {
    const algorithms::Options& now = groups[g].options.values;
    algorithms::Options then = now;
    for (std::size_t i = 0; i < kSayWhose.size(); ++i) then.set(kSayWhose[i], memory_.decoupled_as[g][i]);
    const auto is_same = [&](const char* name) { return now.at(name) == then.at(name); };
    if (std::ranges::all_of(kSayWhose, is_same)) continue;
    for (const ParameterView& view : groups[g].parameters) {
      const algorithms::Algorithm &old = algorithms::algorithm_of(view.param.dim(), then), &other = *view.algorithm;
      const std::vector<std::string> still = decoupled_states(view, other, now);
      for (const std::string& own : decoupled_states(view, old, then)) {
        if (contains(still, own) || algorithms::index_of(other, own) < 0) continue;
        const bool is_another = &other != &old;
        const algorithms::Option& changed = *algorithms::option(is_another ? "algorithm" : "factorization");
        const auto value = [&](const algorithms::Algorithm& algorithm, const algorithms::Options& options) {
          return algorithms::shown(changed, is_another ? algorithms::Value(algorithm.name) : options.at(changed.name));
        };
        TORCH_CHECK_VALUE(false, prefix(), "the ", changed.name, " of ", view.name, " must stay ", value(old, then),
                          " while its ", own, " is each replica's own, got ", value(other, now),
                          "; call synchronize_for_checkpoint() on every rank before it changes");
      }
    }
  }
}

void Core::refuse_if_decoupled(Front& front) {
  const Hold hold(*this);
  if (may_be_decoupled()) update(front, Operation::check_replicas);
  refuse_if_decoupled();
}

void Core::refuse_if_decoupled() {
  if (!may_be_decoupled()) return;
  for (const Replica& replica : replicas()) {
    for (const at::Tensor& momentum : replica.decoupled) {
      TORCH_CHECK(!momentum.any().item<bool>(), prefix(),
                  "the momenta are each replica's own; call synchronize_for_checkpoint() on every rank before "
                  "state_dict()");
    }
  }
}

// Together, as all ranks have agreed to do.
void Core::average_momenta() {
  if (!may_be_decoupled()) return;
  const at::NoGradGuard no_grad;
  for (const Replica& replica : replicas()) {
    for (const at::Tensor& momentum : replica.decoupled) comm::average(momentum, replica.view->layout.replicas);
  }
  momenta_are_equal();
}

// For a handshake: throws where what this rank holds is no state of ours, or broken.
void Core::check_states() {
  refuse_if_broken();
  refuse_other_holders();
  replicas();
}

void Core::synchronize_for_checkpoint(Front& front) {
  const Hold hold(*this);
  begin(front, Operation::synchronize_for_checkpoint, {}, [&] { check_states(); });
  average_momenta();
}

void Core::check_replicas(Front& front, const Axis& copies) {
  const Hold hold(*this);
  std::vector<Replica> all;
  begin(front, Operation::check_replicas, copies, [&] { all = replicas(/*have_bytes=*/true); });
  // What has the same replicas to be compared with, with its parameter.
  struct Compared {
    Axis axis;
    std::vector<at::Tensor> tensors = {};
    std::vector<const ParameterView*> owners = {};
  };
  std::vector<Compared> lines;  // in an order that all ranks share
  for (const Replica& replica : all) {
    const Axis& axis = copies.absent() ? replica.view->layout.replicas : copies;
    if (axis.absent()) continue;
    const auto found = std::ranges::find(lines, axis.line, [](const Compared& one) { return one.axis.line; });
    Compared& line = found == lines.end() ? lines.emplace_back(Compared{axis}) : *found;
    line.tensors.insert(line.tensors.end(), replica.common.begin(), replica.common.end());
    line.owners.resize(line.tensors.size(), replica.view);
  }
  std::string names;
  for (const auto& [axis, tensors, owners] : lines) {
    const std::vector<bool> different = comm::differing(tensors, axis);
    const ParameterView* last = nullptr;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (!different[i] || owners[i] == last) continue;
      last = owners[i];
      names += (names.empty() ? "" : ", ") + last->name;
    }
  }
  TORCH_CHECK(names.empty(), prefix(), "replicas differ in ", names, "; synchronize_replicas() makes them equal");
}

void Core::synchronize_replicas(Front& front, const Axis& copies) {
  const Hold hold(*this);
  std::vector<Replica> all;
  begin(front, Operation::synchronize_replicas, copies, [&] { all = replicas(/*have_bytes=*/true); });
  for (const Replica& replica : all) {
    copy_from_first(replica, copies.absent() ? replica.view->layout.replicas : copies);
  }
  front.written(views_of(all));
}

// This rank's copies of all that replicas have in common of each parameter, as digests.
std::vector<Copy> Core::copies_of(const std::vector<const ParameterView*>& shared, std::size_t first) {
  std::vector<Copy> copies;
  std::unordered_map<const ParameterView*, std::size_t> claims;
  for (std::size_t i = 0; i < shared.size(); ++i) claims[shared[i]] = first + i;
  for (const Replica& replica : replicas()) {
    if (replica.equals.absent()) continue;
    std::string digests;
    // The parameter is the first; the states of one that has not stepped are new, or will be.
    const std::size_t compared = has_stepped(replica.view->state) ? replica.common.size() : 1;
    for (const at::Tensor& tensor : at::TensorList(replica.common).slice(0, compared)) {
      digests += c10::str(linalg::has_memory(tensor) ? comm::digest_of(tensor) : 0, '\n');
    }
    copies.push_back({claims.at(replica.view), replica.equals, comm::digest(digests)});
  }
  return copies;
}

// As all ranks do that have found these, or others, to be unequal before a step.
void Core::start_alike(Front& front, const std::unordered_set<const void*>& params) {
  std::vector<Replica> all;
  const auto prepare = [&] {
    std::vector<std::string> names;
    for (Replica& replica : replicas(/*have_bytes=*/true)) {
      if (!params.count(replica.view->param.unsafeGetTensorImpl())) continue;
      names.push_back(replica.view->name);
      all.push_back(std::move(replica));
    }
    if (!names.empty()) front.warn(sentence_of_apart(names));
  };
  begin(front, Operation::synchronize_replicas, {}, prepare);
  for (const Replica& replica : all) copy_from_first(replica, replica.equals);
  front.written(views_of(all));
}

}  // namespace torchdion::engine
