// What an optimizer holds beside what every torch::optim::Optimizer does.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "engine/count.h"
#include "engine/step.h"
#include "optim/agreement.h"
#include "optim/inputs.h"
#include "optim/layouts.h"
#include "optim/options.h"
#include "optim/written_options.h"
#include "words.h"

namespace torchdion {

namespace optim {

// What this rank holds of a parameter and its state.
struct Replica {
  const void* param;
  std::string name;
  const Layout* layout;
  Axis equals;                        // the ranks that hold the same once they are equal: replicas, or those of owners
  std::vector<at::Tensor> common;     // alike on all replicas, to the last bit
  std::vector<at::Tensor> decoupled;  // each replica's own: the momentum of a compressed matrix
  bool has_stepped = false;           // else its state is new, or will be
};

// The options of a group that say which algorithm updates a parameter, and whether its replicas average factors.
using WhoseStates = std::tuple<std::string, std::string, std::optional<int64_t>, Factorization>;

// A step that was found good, and what it was made of.
struct Planned {
  std::optional<StepInputs> inputs;
  std::unique_ptr<engine::Step> step;
};

}  // namespace optim

struct Optimizer::Private {
  std::string algorithm, title;  // of groups that name none; of the class, as sentences call it
  Stats stats;                   // without the traffic, which the axes count, and these:
  engine::Count skipped, nonfinite, without_signal, in_margin;
  std::unique_ptr<engine::InFlight> in_flight;  // of the last step; null: it has left nothing, or that has ended
  optim::Layouts layouts;
  bool agreed = false;     // ranks say nothing before their steps: they did, and steps are capturable
  bool compared = false;   // replicas have compared weights and states since they were given, added or loaded
  bool decoupled = false;  // a step may have taken momenta of replicas apart since they were equal
  std::vector<optim::WhoseStates> decoupled_as;  // of each group, as the last step had it where it may have
  double steps_when_equal = 0;                   // of all parameters together, counted where steps are capturable
  std::string broken;                    // why the parameters are no longer what any step leaves; empty: they are
  std::vector<optim::SaidOptions> said;  // of each group, at the last step
  std::vector<optim::Entries> unknown;   // of each group that was loaded: the entries that are no options of ours

  // Waits for what is in flight, which counts then.
  void flush();
  void refuse_if_broken() {
    flush();
    TORCH_CHECK(broken.empty(), prefix(), broken, "; load a checkpoint");
  }
  // As sentences speak while a method runs. The optimizer must outlive them.
  Words words(const Optimizer& optimizer) const;
  void step(Optimizer& optimizer);
  optim::Planned plan(Optimizer& optimizer);
  optim::Apart agree(const Optimizer& optimizer, const optim::Handshake& handshake) const;
  // For a handshake: throws where what this rank holds is no state of ours, or broken.
  void check(const Optimizer& optimizer);
  // A step that was taken, or only recorded by a graph.
  void count(engine::Report report, bool is_captured);
  // A step that all ranks take now.
  void may_decouple(const Optimizer& optimizer, bool averages);
  // Refuses an algorithm that would take a replica's own state for one that all have in common.
  void refuse_other_holders(const Optimizer& optimizer) const;
  // Steps that a graph replayed count too; only the state knows of them.
  bool may_be_decoupled(const Optimizer& optimizer) const;
  void momenta_are_equal(const Optimizer& optimizer);
  void average_momenta(const Optimizer& optimizer);  // together, after a handshake
  // The values that replicas must share before a step, and the copies that make them equal.
  std::vector<optim::Common> common(const Optimizer& optimizer) const;
  void start_alike(const Optimizer& optimizer, const std::unordered_set<const void*>& params);
  void refuse_if_decoupled(const Optimizer& optimizer) const;
  std::vector<optim::Replica> replicas(const Optimizer& optimizer) const;
};

}  // namespace torchdion
