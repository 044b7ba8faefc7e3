// An optimizer between steps, for both languages: its groups and parameters, their states, their owners, what is in
// flight and what was counted.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "engine/agreement.h"
#include "engine/parameter.h"
#include "engine/step.h"

namespace torchdion::engine {

class Core;

// The front of a language shows the core what a program has, and takes what the core makes of it.
class Front {
 public:
  virtual ~Front() = default;

  // Shows the core what the program has changed since the last time: groups, parameters, layouts, states. Throws for
  // what it refuses; the parameters, and the axes that they lie on, are shown first. operation: that they are shown
  // for.
  virtual void update(Core& core, Operation operation) = 0;
  // Throws for a parameter of which it could not show what a step needs, as nobody needed it: it has no gradient here.
  virtual void require(const ParameterView& /*view*/) {}
  // What a gradient scaler says of all gradients.
  virtual GradientScaling scaling() { return {}; }
  // This rank's pieces of the gradients of all parameters, in their order; undefined: there is none.
  virtual std::vector<at::Tensor> gradients(const Core& core) = 0;
  // Takes what the core has made of a parameter's state.
  virtual void keep(const ParameterView& view) = 0;
  // Gives axes second groups, on all of their ranks at once. False: a program must have done so.
  virtual bool opens_groups() const { return false; }
  virtual void open_groups(const std::vector<Axis>& /*axes*/) {}
  // These were written to.
  virtual void written(const std::vector<const ParameterView*>& /*views*/) {}
  virtual void warn(const std::string& sentence) = 0;
};

// The parameters without a gradient on this rank whose gradient other ranks have: it is zero here, of the dtype there.
// By their TensorImpl.
using Missing = std::unordered_map<const void*, at::ScalarType>;

// Counts of what steps have done.
struct Counts {
  int64_t steps = 0;
  Count skipped, nonfinite, without_signal, in_margin;
  int64_t batches = 0, workspace_bytes = 0;         // of the last one
  std::map<std::string, int64_t> expected_traffic;  // of the last one
};

// The options that say which algorithm updates a parameter, and whether its replicas average factors or gradients.
inline constexpr std::array kSayWhose = {"algorithm", "scalar_algorithm", "batch_dims", "factorization"};
using WhoseStates = std::array<algorithms::Value, kSayWhose.size()>;

// A copy of an optimizer must have this beside its groups and states.
struct Memory {
  Counts counts;
  bool decoupled = false;                 // a step may have taken momenta of replicas apart since they were equal
  std::vector<WhoseStates> decoupled_as;  // of each group, as the last step had it where it may have
  double steps_when_equal = 0;            // of all parameters together, counted where steps are capturable
  std::string broken;                     // why the parameters are no longer what any step leaves; empty: they are
};

// The tensors of a parameter that are averaged, compared or made equal.
struct Replica {
  const ParameterView* view;
  Axis equals;                        // the ranks that hold the same once they are equal: replicas, or those of owners
  std::vector<at::Tensor> common;     // alike on all replicas, to the last bit
  std::vector<at::Tensor> decoupled;  // each replica's own: the momentum of a compressed matrix
};

// A state of which this rank owns a part.
struct OwnedState {
  int64_t parameter;  // its index
  std::string name;
  std::vector<int64_t> whole;  // over all owners
  int64_t begin;               // of the part in dimension 0
};

class Core {
 public:
  // A front shows them in Front::update(). Between the calls of the methods below no tensor of these is kept alive:
  // what a program takes out of its groups is freed.
  std::vector<ParameterGroup> groups;
  // True if some of them were freed since they were shown: they are undefined.
  bool has_lost() const { return has_lost_; }
  void all_shown() { has_lost_ = false; }
  bool capturable = false;
  Nonfinite nonfinite = Nonfinite::propagate;
  // Other parameters than before, or other layouts of them.
  void parameters_changed() { agreed_ = compared_ = false; }

  // One step, see torchdion::Optimizer::step(). Everything is checked and allocated before anything is written.
  void step(Front& front);

  // Makes the states that a step with these gradients would make, on this rank alone.
  void make_states(Front& front);

  // See torchdion::Optimizer.
  void synchronize_for_checkpoint(Front& front);
  void check_replicas(Front& front, const Axis& copies);
  void synchronize_replicas(Front& front, const Axis& copies);
  // The states of all parameters, in their order, put together from all ranks' pieces. Averages momenta first.
  std::vector<ParameterState> whole_states(Front& front);
  std::vector<OwnedState> owned_states(Front& front);
  // options(g): that group g gets before, once ranks have agreed.
  using OptionsOfGroup = std::function<algorithms::Options(std::size_t group)>;
  void resize_rank(Front& front, const OptionsOfGroup& options = {});

  // Waits for what the last step has left in flight. Throws what failed there; states are not those of any step then.
  void flush();
  // Throws c10::Error where a step failed when it had begun to write.
  void refuse_if_broken();
  void refuse_if_decoupled(Front& front);
  // This rank's states, of all parameters in their order. Throws c10::Error where no checkpoint may hold them: a step
  // failed, or momenta are each replica's own.
  std::vector<ParameterState> states(Front& front);
  // Other states have taken the place of all.
  void loaded(Front& front, bool capturable);
  const Memory& memory() const { return memory_; }
  void remember(Memory memory) { memory_ = std::move(memory); }
  bool has_in_flight() const { return in_flight_ != nullptr; }

  // The states of a parameter of which each replica has its own.
  std::vector<std::string> decoupled_states_of(Front& front, const at::Tensor& param);
  bool averages() const;  // over replicas

 private:
  // Takes hold of the tensors of the groups, for as long as a method runs.
  class Hold {
   public:
    explicit Hold(Core& core);
    ~Hold();

   private:
    Core& core_;
    bool is_outer_;  // else a method that calls this one holds them
  };

  // A step that was found good, and the states that it makes.
  struct Prepared {
    std::vector<const ParameterView*> updated;
    std::vector<std::pair<ParameterView*, ParameterState>> made;  // states that were missing
    std::unique_ptr<Step> step;
    bool averages = false;  // matrices over replicas: it may take their momenta apart
  };

  void update(Front& front, Operation operation);
  // Fills prepared_, with the parameters, gradients and states that a step updates in lists, by group and algorithm.
  // missing: the parameters whose gradient, which only other ranks have, is zero here. Throws c10::Error for a state
  // that no step takes.
  Groups gather_inputs(Front& front, const Missing& missing);
  void prepare(Front& front, const Missing& missing);
  void keep_made(Front& front);
  void run(Front& front);
  void count(Report report, bool is_captured);
  Missing missing_when_alone() const;
  bool is_alone() const { return agreed_ && capturable; }
  bool is_captured() const;

  // Those that other ranks have too, or pieces of them. `copies`: ranks that hold copies of everything.
  std::vector<const ParameterView*> shared(const Axis& copies) const;
  // Tells other ranks, which wait in agree(), that this one does not take part.
  void refuse(Operation operation, const Axis& copies) const;
  // Waits for the ranks of all layouts, which say what they do and what they take everything for. Returns the
  // parameters of which ranks hold unequal copies, where they compared them; null: they are equal.
  std::unique_ptr<std::unordered_set<const void*>> agree(Operation operation, const Axis& copies,
                                                         const std::function<void(const Missing&)>& provide = {},
                                                         bool compares = false);
  // Begins what is no step, once every rank has prepared what it needs.
  void begin(Front& front, Operation operation, const Axis& copies, const std::function<void()>& prepare);

  // have_bytes: throws c10::ValueError for one that has none to compare or to copy.
  std::vector<Replica> replicas(bool have_bytes = false);
  void check_states();
  std::vector<Copy> copies_of(const std::vector<const ParameterView*>& shared, std::size_t first);
  void start_alike(Front& front, const std::unordered_set<const void*>& params);
  double steps_taken() const;
  bool may_be_decoupled() const;
  void may_decouple(bool averages);
  // Refuses an algorithm that would take a replica's own state for one that all have in common.
  void refuse_other_holders() const;
  void momenta_are_equal();
  void average_momenta();
  void refuse_if_decoupled();

  Memory memory_;
  std::unique_ptr<InFlight> in_flight_;  // of the last step; null: it has left nothing, or that has ended
  Prepared prepared_;
  KnownPlan known_;
  Claims claims_;
  GradientScaling scaling_;
  std::vector<c10::weak_intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl>> tensors_;  // of the groups
  bool is_held_ = false, has_lost_ = false;
  bool agreed_ = false;    // ranks have compared what they take everything for
  bool compared_ = false;  // replicas have compared weights and states since they were given, added or loaded
};

}  // namespace torchdion::engine
