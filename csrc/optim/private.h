// What a Dion object holds beside what every torch::optim::Optimizer does.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/count.h"
#include "engine/step.h"
#include "engine/words.h"
#include "optim/hand_over.h"
#include "optim/layouts.h"
#include "optim/options.h"

namespace torchdion {

namespace optim {

// What this rank holds of a parameter and its state.
struct Replica {
  std::string name;
  const Layout* layout;
  std::vector<at::Tensor> common;     // alike on all replicas, to the last bit
  std::vector<at::Tensor> decoupled;  // each replica's own: the momentum of a compressed matrix
};

// A step that was found good, and what it was made of.
struct Planned {
  std::optional<Gathering> gathering;
  std::unique_ptr<engine::Step> step;
};

}  // namespace optim

struct Dion::Private {
  DionStats stats;  // without the traffic, which the axes count, and these:
  engine::Count skipped, nonfinite, without_signal, in_margin;
  optim::Layouts layouts;
  bool agreed = false;                  // ranks say nothing before their steps: they did, and steps are capturable
  bool decoupled = false;               // a step may have taken momenta of replicas apart since they were equal
  double steps_when_equal = 0;          // of all parameters together, counted where steps are capturable
  std::string broken;                   // why the parameters are no longer what any step leaves; empty: they are
  std::vector<optim::Entries> unknown;  // of each group that was loaded: the entries that are no options of ours

  void refuse_if_broken() const { TORCH_CHECK(broken.empty(), "torchdion::Dion: ", broken, "; load a checkpoint"); }
  void step(Dion& optimizer);
  optim::Planned plan(Dion& optimizer);
  void agree(const Dion& optimizer, const optim::Handshake& handshake) const;
  // For a handshake: throws where what this rank holds is no state of ours, or broken.
  void check(const Dion& optimizer) const;
  // A step that was taken, or only recorded by a graph.
  void count(engine::Report report, bool is_captured);
  // Also by steps that a graph replayed, which only the state counts.
  bool may_be_decoupled(const Dion& optimizer) const;
  void momenta_are_equal(const Dion& optimizer);
  void average_momenta(const Dion& optimizer);  // together, after a handshake
  void refuse_if_decoupled(const Dion& optimizer) const;
  std::vector<optim::Replica> replicas(const Dion& optimizer) const;
};

namespace optim {

std::string group_name(std::size_t index);
std::string parameter_name(std::size_t place, std::size_t group);
const DionOptions& options_of(const torch::optim::OptimizerParamGroup& group, std::size_t index);

// Throws c10::ValueError for a state that another optimizer's code has put there.
const DionParamState& ours(const torch::optim::OptimizerParamState& state);

// What the engine calls the parameters of these groups, which must outlive the words.
engine::Words words_of(const std::vector<torch::optim::OptimizerParamGroup>& groups);

// What holds for the whole optimizer is what its groups say, which must not differ: what it does with gradients that
// are not finite, what operands are rounded to, and whether a graph may capture its steps.
Nonfinite nonfinite_of(const std::vector<torch::optim::OptimizerParamGroup>& groups, const DionOptions& defaults);
Precision precision_of(const std::vector<torch::optim::OptimizerParamGroup>& groups, const DionOptions& defaults);
bool capturable_of(const std::vector<torch::optim::OptimizerParamGroup>& groups, const DionOptions& defaults);

// Throws c10::ValueError with one sentence for what no step could use: an option, a parameter, one that is given twice.
void check_groups(const std::vector<torch::optim::OptimizerParamGroup>& groups, const DionOptions& defaults);

}  // namespace optim

}  // namespace torchdion
